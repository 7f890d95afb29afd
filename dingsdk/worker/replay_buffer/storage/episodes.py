"""Storages of episodes of any length, as columns of rows or as objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import common_length, mismatch
from dingsdk.worker.replay_buffer.storage import Storage, Where, one_by_one, suits_arrays
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage

_LEAST_ROWS = 64
"""Initial capacity, in rows, of the columns of an episode buffer."""


class EpisodeStorage(Storage):
    """Holds an episode at each position.

    An episode is pushed as a SampleBatch or a list of rows. It is returned as a SampleBatch, or as
    a list if its rows are not dicts of numbers and arrays.
    """

    @abstractmethod
    def lengths(self, where: Where) -> list[int]:
        """Return how many rows the episodes at positions have."""


def is_episode(row: Any) -> bool:
    """Whether ``row`` is a list of rows or a SampleBatch, and not empty."""
    return isinstance(row, (SampleBatch, list, tuple)) and len(row) > 0


def _check_episodes(rows: SampleBatch | Sequence[Any]) -> None:
    for index, row in enumerate(rows):
        if not is_episode(row):
            hint = "an episode has a row at least; push one as push([episode], envstep)"
            found = f"{type(row).__name__} {' '.join(repr(row).split()):.60}"
            raise mismatch(f"episode {index}", "", "a list of rows", found, hint, row=index)


class EpisodeObjects(EpisodeStorage):
    """Stores each episode as one object of an object storage."""

    holds_objects = True

    def __init__(self, objects: Storage, capacity: int) -> None:
        super().__init__({}, capacity, objects.deepcopy)
        self._objects = objects

    def accept(self, rows: SampleBatch | Sequence[Any]) -> Any:
        _check_episodes(rows)
        return self._objects.accept(list(map(_as_object, rows)))

    def put(self, where: Where, rows: Any) -> None:
        self._objects.put(where, rows)

    def take(self, where: Where) -> list[Any]:
        episodes = self._objects.take(where)
        # The dict is a copy already, but its arrays are not.
        return [SampleBatch(e).copy() if isinstance(e, dict) else e for e in episodes]

    def lengths(self, where: Where) -> list[int]:
        episodes = self._objects.take(where)
        return [common_length(e) if isinstance(e, dict) else len(e) for e in episodes]

    def clear(self) -> None:
        self._objects.clear()

    def close(self) -> None:
        self._objects.close()


def _as_object(episode: Any) -> Any:
    # A batch becomes a dict, because an object storage copies the values of dicts.
    if isinstance(episode, SampleBatch):
        return episode.copy().columns
    return SampleBatch.from_rows(episode).columns if suits_arrays(episode) else list(episode)


class EpisodeColumns(EpisodeStorage):
    """Stores the rows of all episodes in columns, which double in size when they are full.

    All episodes have the same columns; their lengths differ. Room for the rows of a push is made
    before the episodes that they replace are freed, so the columns need room for both.
    """

    def __init__(self, rows: ArrayStorage, capacity: int) -> None:
        super().__init__({}, capacity, rows.deepcopy)
        self._rows = rows
        self._forget()

    def _forget(self) -> None:
        # For each position, the places of the episode's rows in the columns, in order.
        self._places: list[Where] = []
        # A stack of unused places; places that were never used are below all others.
        self._free = np.empty(0, np.int64)
        self._n_free = 0

    def accept(self, rows: Any) -> list[tuple[int, Any]]:
        """Return the length of each episode, and its accepted rows."""
        _check_episodes(rows)
        needed = sum(map(len, rows))
        was_empty = len(self._free) == 0
        if was_empty:
            self._rows.capacity = max(_LEAST_ROWS, needed)
        try:
            accepted = [(len(episode), self._rows.accept(episode)) for episode in rows]
            if needed > self._n_free:
                self._grow(needed)
            self._rows.make_room(needed)
        except BaseException:
            if was_empty:
                self.clear()
            raise
        return accepted

    def _grow(self, needed: int) -> None:
        held = len(self._free)
        if held:
            used = held - self._n_free
            self._rows.grow(max(2 * held, used + needed))
        capacity = self._rows.capacity
        free = np.empty(capacity, np.int64)
        free[: capacity - held] = np.arange(capacity - 1, held - 1, -1)
        free[capacity - held :][: self._n_free] = self._free[: self._n_free]
        self._free, self._n_free = free, self._n_free + capacity - held

    def put(self, where: Where, rows: list[tuple[int, Any]]) -> None:
        for position, (length, episode) in zip(one_by_one(where).tolist(), rows, strict=True):
            self._n_free -= length
            # Ascending, because adjacent places are read faster.
            place = _as_slice(np.sort(self._free[self._n_free : self._n_free + length]))
            self._rows.put(place, episode)
            if position < len(self._places):
                left = one_by_one(self._places[position])
                self._free[self._n_free : self._n_free + len(left)] = left[::-1]
                self._n_free += len(left)
            else:
                ahead = position + 1 - len(self._places)
                self._places += [slice(0, 0)] * ahead
            self._places[position] = place

    def take(self, where: Where) -> list[Any]:
        return [self._rows.take(self._places[position]) for position in one_by_one(where).tolist()]

    def lengths(self, where: Where) -> list[int]:
        places = [self._places[position] for position in one_by_one(where).tolist()]
        return [p.stop - p.start if isinstance(p, slice) else len(p) for p in places]

    def clear(self) -> None:
        self._rows.clear()
        self._forget()

    def close(self) -> None:
        self._rows.close()
        self._forget()


def _as_slice(places: NDArray[np.int64]) -> Where:
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
