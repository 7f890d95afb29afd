"""Storages of episodes of any length, as columns of rows or as objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import common_length, mismatch
from dingsdk.errors import CheckpointCorruptError
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
    # A batch becomes a dict, because an object storage copies and compresses the values of dicts.
    if isinstance(episode, SampleBatch):
        return episode.copy().columns
    return SampleBatch.from_rows(episode).columns if suits_arrays(episode) else list(episode)


class EpisodeColumns(EpisodeStorage):
    """Stores the rows of all episodes in columns, which double in size when they are full.

    All episodes have the same columns; their lengths differ. The rows of a push are stored before
    the episodes that they replace are freed, so the columns need room for both.

    With columns on disk, a push is stored completely or not at all if the process is killed. (Of a
    push of more episodes than the capacity, a part may be stored.)
    """

    def __init__(self, rows: ArrayStorage, capacity: int) -> None:
        super().__init__({}, capacity, rows.deepcopy)
        self._rows = rows
        self.is_durable = rows.is_durable  # type: ignore[misc]
        rows.hold_episodes(capacity)
        self._forget()

    def _forget(self) -> None:
        # For each position, the places of the episode's rows in the columns, in order.
        self._places: list[Where] = []
        # A stack of unused places; places that were never used are below all others.
        self._free = np.empty(0, np.int64)
        self._n_free = 0
        self._next = 1

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
        left: list[Where] = []
        for position, (length, episode) in zip(one_by_one(where).tolist(), rows, strict=True):
            self._n_free -= length
            # Ascending, because rows recovered from disk are ordered by their place.
            place = _as_slice(np.sort(self._free[self._n_free : self._n_free + length]))
            self._rows.put(place, episode)
            self._rows.mark(place, self._next)
            self._next += 1
            if position < len(self._places):
                left.append(self._places[position])
            else:
                ahead = position + 1 - len(self._places)
                self._places += [slice(0, 0)] * ahead
            self._places[position] = place
        # Freed last, so that an interrupted call has overwritten no row of an older episode.
        for places in map(one_by_one, left):
            self._free[self._n_free : self._n_free + len(places)] = places[::-1]
            self._n_free += len(places)

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

    def commit(self, state: Mapping[str, int]) -> None:
        first = self._next - state["valid_count"]
        count = state["push_count"]
        rows = self._rows.capacity
        self._rows.commit({"push_count": count, "first": first, "next": self._next, "rows": rows})

    def recovered(self) -> dict[str, int] | None:
        state = self._rows.recovered()
        if state is None:
            self._rows.clear()  # no push was complete
            return None
        capacity = self._rows.capacity
        marks = self._rows.recovered_marks(np.arange(capacity))
        assert marks is not None
        first, self._next = state["first"], state["next"]
        live = (marks >= first) & (marks < self._next)
        (places,) = np.nonzero(live)
        places = places[np.argsort(marks[places], kind="stable")]
        numbers, starts = np.unique(marks[places], return_index=True)
        if len(numbers) != self._next - first or len(numbers) > self.capacity:
            raise CheckpointCorruptError(
                f"the columns hold the rows of {len(numbers)} episodes, and those from {first} to "
                f"{self._next - 1} should be there; delete the folder"
            )
        self._places = [_as_slice(each) for each in np.split(places, starts[1:])]
        free = np.flatnonzero(~live)[::-1]
        self._free = np.empty(capacity, np.int64)
        self._free[: len(free)] = free
        self._n_free = len(free)
        count = len(numbers)
        counts = {"tail": count % self.capacity, "valid_count": count}
        return {**counts, "push_count": state.get("push_count", count)}


def _as_slice(places: NDArray[np.int64]) -> Where:
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
