"""A remover as a plugin could define it: it removes rows at random, from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer import Remover, Where


class RandomRemover(Remover):
    """Removes random rows (type ``random``)."""

    config: ClassVar[dict[str, Any]] = {"type": "random"}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._rng = np.random.default_rng(seed)
        self._oldest_first: list[int] = []

    @property
    def count(self) -> int:
        return len(self._oldest_first)

    def allot(self, n: int) -> tuple[Where, Where | None]:
        free = list(range(self.count, min(self.count + n, self.capacity)))
        chosen = self._rng.permutation(self.count)[: n - len(free)].tolist()
        leaving = [position for position in self._oldest_first if position in chosen]
        where = [*free, *leaving]
        self._oldest_first = [p for p in self._oldest_first if p not in leaving] + where
        return np.array(where, np.int64), np.array(leaving, np.int64) if leaving else None

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return ranks

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(self._oldest_first, np.int64)[ages]

    def clear(self) -> None:
        self._oldest_first = []

    def state_dict(self) -> dict[str, Any]:
        state = self._rng.bit_generator.state
        words = {key: hex(word) for key, word in state.pop("state").items()}
        return {**state, **words, "oldest_first": np.array(self._oldest_first, np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            order = [int(position) for position in state["oldest_first"]]
            words = {key: int(state[key], 16) for key in ("state", "inc")}
            bits = np.random.PCG64(0)
            bits.state = cast(Any, {**state, "state": words})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"no state of a random remover: {error}") from error
        if sorted(order) != list(range(len(order))) or len(order) > self.capacity:
            raise CheckpointCorruptError(f"{order} are no positions of {self.capacity}")
        self._rng, self._oldest_first = np.random.Generator(bits), order
