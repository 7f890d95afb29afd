"""Episodes of any length, with their rows in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.storage.array import ArrayStorage
from dingsdk.worker.replay_buffer.storage.contract import Rows, Storage

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

_LEAST_ROWS = 64


class EpisodeColumns(Storage):
    """Holds an episode at each position, its rows in columns that all episodes share.

    An episode comes as a SampleBatch, a list of dicts or a dict of columns, and is given as a
    dict of columns of the caller's own. All have the same columns; lengths differ. There is
    room for as many rows as the episodes ever had at once, with those of the newest push beside
    all of before: the columns double when it is too little.

    Args:
        rows: The columns, empty; what they hold is this storage's.
        capacity: Number of episodes.
    """

    def __init__(self, rows: ArrayStorage, capacity: int) -> None:
        super().__init__({}, capacity, rows.deepcopy)
        self._rows = rows
        self._forget()

    def _forget(self) -> None:
        # Where the rows of the episode at each position lie, in their order.
        self._places: list[Where] = []
        # A stack of places without a row; those that never had one are below all others.
        self._free = np.empty(0, np.int64)
        self._n_free = 0
        self._next = 1

    @property
    def _is_empty(self) -> bool:
        return len(self._free) == 0

    def accept(self, rows: SampleBatch | Sequence[Any]) -> list[SampleBatch]:
        episodes = [SampleBatch(row) if isinstance(row, Mapping) else row for row in rows]
        needed = sum(map(len, episodes[-self.capacity :]))
        was_empty = self._is_empty
        if was_empty:
            self._rows.capacity = max(_LEAST_ROWS, needed)
        try:
            accepted = [self._rows.accept(episode) for episode in episodes]
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

    def put(self, where: Where, rows: Rows) -> None:
        left: list[Where] = []
        for position, episode in zip(_each(where), rows, strict=True):
            place = self._new_place(len(episode))
            self._rows.put(place, episode)
            self._rows.mark(place, self._next)
            self._next += 1
            if position < len(self._places):
                left.append(self._places[position])
            else:
                ahead = position + 1 - len(self._places)
                self._places += [slice(0, 0)] * ahead
            self._places[position] = place
        # Only now, so that a push that is cut off has written over no row of another one.
        for place in left:
            self._give_back(place)

    def _new_place(self, rows: int) -> Where:
        self._n_free -= rows
        # In ascending order, which is all that a storage on disk tells of that of the rows.
        return _as_slice(np.sort(self._free[self._n_free : self._n_free + rows]))

    def _give_back(self, place: Where) -> None:
        places = _as_array(place)
        self._free[self._n_free : self._n_free + len(places)] = places[::-1]
        self._n_free += len(places)

    def take(self, where: Where) -> list[dict[str, Any]]:
        return [self._rows.take(self._places[position]).columns for position in _each(where)]

    @property
    def steps(self) -> int:
        """How many rows all episodes have."""
        return len(self._free) - self._n_free

    def take_steps(self, where: Where) -> tuple[SampleBatch, NDArray[np.int64]]:
        """Return the rows of episodes, one episode after the other, and how many each has."""
        each = [_as_array(self._places[position]) for position in _each(where)]
        places: NDArray[np.int64] = np.concatenate(each)
        lengths = np.array(list(map(len, each)), np.int64)
        in_a_row = bool(np.all(places[1:] - places[:-1] == 1))
        return self._rows.take(_as_slice(places) if in_a_row else places), lengths

    def lengths(self, where: Where) -> list[int]:
        """Return how many rows the episodes at positions have."""
        places = [self._places[position] for position in _each(where)]
        return [p.stop - p.start if isinstance(p, slice) else len(p) for p in places]

    def clear(self) -> None:
        self._rows.clear()
        self._forget()

    def close(self) -> None:
        self._rows.close()
        self._forget()


class DurableEpisodes(EpisodeColumns):
    """The same over columns on disk: a process that is killed leaves each whole push or nothing."""

    def __init__(self, rows: MemmapStorage, capacity: int) -> None:
        super().__init__(rows, capacity)
        rows.hold_episodes(capacity)

    def commit(self, state: Mapping[str, int]) -> None:
        count = state["valid_count"]
        # The ring that the columns know of is empty, as none of their rows is ever the oldest.
        known = {"tail": 0, "valid_count": 0, "push_count": state["push_count"]}
        self._rows.commit({**known, "first": self._next - count, "next": self._next})

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


def _each(where: Where) -> Iterable[int]:
    return range(where.start, where.stop) if isinstance(where, slice) else where.tolist()


def _as_array(place: Where) -> NDArray[np.int64]:
    return np.arange(place.start, place.stop) if isinstance(place, slice) else place


def _as_slice(places: NDArray[np.int64]) -> Where:
    if places[-1] - places[0] + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places
