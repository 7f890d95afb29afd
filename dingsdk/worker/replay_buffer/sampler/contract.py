"""Samplers: which rows of a buffer a batch is made of.

Three families, by what they draw: a :class:`RowSampler` draws single rows alike, a
``PrioritySampler`` (``priority_sampler.py``) single rows by their priority, a
``SequenceSampler`` (``sequence_sampler.py``) stretches of rows that follow each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler.rng_state import load_rng_state, new_rng, rng_state
from dingsdk.worker.replay_buffer.storage import Rows


class Sampler(Configurable, ABC):
    """What all samplers share; called under the buffer's lock.

    Args:
        cfg: The ``sampler`` section of the buffer's config.
        capacity: Positions of the storage, >= 1.
        seed: Of the random stream, >= 0; None takes one from the operating system.
    """

    config: ClassVar[dict[str, Any]] = {"type": ""}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        self.capacity = capacity
        self._rng = new_rng(seed)

    def on_insert(self, where: Where, rows: Rows) -> None:
        """Hear of rows, as they were pushed, that now lie at positions; oldest first."""

    def on_skip(self, rows: Rows) -> None:
        """Hear of rows that a longer push overtook: they came, and left, before those stored."""

    def on_remove(self, where: Where) -> None:
        """Hear of positions whose rows leave, oldest first, before others take them."""

    def check_rows(self, rows: Rows) -> None:
        """Refuse rows that this sampler could not serve, before anything is stored.

        Raises:
            SchemaMismatchError: names the key.
        """

    def clear(self) -> None:
        """Forget all rows."""

    def state_dict(self) -> dict[str, Any]:
        """Return the random state, as plain numbers and strings.

        What :meth:`on_insert` builds up needs no saving: it hears the rows of a loaded state.
        """
        return rng_state(self._rng)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a random state; changes nothing when it is wrong.

        Raises:
            CheckpointCorruptError: it is none of this sampler's.
        """
        self._rng = load_rng_state(state)


class RowSampler(Sampler):
    """Draws single rows, knowing nothing about them but how many there are."""

    @abstractmethod
    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        """Draw ``size`` of the ranks ``0..population-1``.

        Args:
            population: Rows to draw from, >= 1.
            size: Ranks to draw, >= 1, and at most ``population`` unless ``replace``.
            replace: Whether a rank may come more than once.

        Returns:
            int64[size], in any order.
        """
