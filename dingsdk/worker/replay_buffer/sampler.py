"""Samplers: which rows of a buffer a batch is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.errors import CheckpointCorruptError


class Sampler(Configurable, ABC):
    """Draws ranks of rows; called under the buffer's lock.

    Args:
        cfg: The ``sampler`` section of the buffer's config.
        seed: Of the random stream, >= 0; None takes one from the operating system.
    """

    config: ClassVar[dict[str, Any]] = {"type": ""}

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        self.seed = seed

    @abstractmethod
    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        """Draw ``size`` of the ranks ``0..population-1``.

        Args:
            population: Rows to draw from, >= 1.
            size: Ranks to draw, >= 1, and at most ``population`` unless ``replace``.
            replace: Whether a rank may come more than once.

        Returns:
            int64[size], ascending: neighbours share cache lines when they are gathered.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the random state, as plain numbers and strings."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a random state; changes nothing when it is wrong.

        Raises:
            CheckpointCorruptError: it is none of this sampler's.
        """


class UniformSampler(Sampler):
    """Every row alike, and every set of distinct rows alike (type ``uniform``)."""

    config: ClassVar[dict[str, Any]] = {"type": "uniform"}

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        super().__init__(cfg, seed)
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        if replace or size == 1:
            drawn = self._integers(population, size)
            drawn.sort()
            return drawn
        if 2 * size <= population:
            return self._distinct(population, size)
        # Most rows are wanted: draw those to leave out.
        keep = np.ones(population, dtype=np.bool_)
        if size < population:
            keep[self._distinct(population, population - size)] = False
        return np.flatnonzero(keep).astype(np.int64, copy=False)

    def _distinct(self, population: int, size: int) -> NDArray[np.int64]:
        # Generator.choice(replace=False) works on a permutation of the population, which
        # costs as much as the buffer is large. Drawing on until `size` distinct ranks are found
        # leaves every set equally likely, and the first draw nearly always suffices.
        drawn = self._integers(population, size)
        drawn.sort()
        while np.count_nonzero(drawn[1:] == drawn[:-1]):
            drawn = np.unique(drawn)
            more = self._integers(population, size - len(drawn))
            drawn = np.concatenate((drawn, more))
            drawn.sort()
        return drawn

    def _integers(self, population: int, size: int) -> NDArray[np.int64]:
        # Half the time of Generator.integers (3.4 and 7.2 us for 256). Doubles have 53 random
        # bits, so ranks differ in probability by population / 2**53 at most.
        return (self._rng.random(size) * population).astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        state = self._rng.bit_generator.state
        # The generator's words have 128 bits, more than messages and checkpoints carry.
        return {
            "bit_generator": "PCG64",
            "state": hex(state["state"]["state"]),
            "inc": hex(state["state"]["inc"]),
            "has_uint32": int(state["has_uint32"]),
            "uinteger": int(state["uinteger"]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        generator = np.random.PCG64(0)
        try:
            if state["bit_generator"] != "PCG64":
                raise ValueError(f"bit generator {state['bit_generator']!r}")
            generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": int(state["state"], 16), "inc": int(state["inc"], 16)},
                "has_uint32": int(state["has_uint32"]),
                "uinteger": int(state["uinteger"]),
            }
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointCorruptError(f"the sampler's random state is wrong: {error}") from error
        self._rng = np.random.Generator(generator)
