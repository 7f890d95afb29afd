"""The state of a table: copies of it, made under the table's lock, and checks of a saved one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError, SchemaMismatchError
from dingsdk.worker.replay_buffer.storage import Rows, Where, one_by_one

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.row_metadata import RowMetadata
    from dingsdk.worker.replay_buffer.sampler import Sampler
    from dingsdk.worker.replay_buffer.table import Contents

Natural = Annotated[int, msgspec.Meta(ge=0)]
Facts = dict[str, NDArray[Any]]

VERSION = 2
"""Version of a buffer's saved state."""


class TableSnapshot:
    """Reads a table whose lock is held; the number of a row is how many were pushed before it.

    Args:
        contents: The parts of the table.
        entries: Entries of the state that do not come from the parts.

    Attributes:
        first: Number of the oldest row.
        last: Number after that of the newest row.
        lineage: Random name of the history in which rows are numbered; a new history starts when
            the table is cleared or loads a state.
        made_of: Types of the buffer, its sampler and its remover.
        is_ordered: Whether rows only leave oldest first.
    """

    def __init__(self, contents: Contents, entries: Mapping[str, Any]) -> None:
        self._contents, self._entries = contents, entries
        self.first, self.last = contents.pushed - contents.remover.count, contents.pushed
        # A forked process has a different history, so its id is part of the name.
        self.lineage = f"{contents.history}-{os.getpid()}"
        self.made_of: Mapping[str, str] = contents.factory.made_of
        self.is_ordered = contents.remover.is_fifo

    def rows(self, start: int, stop: int) -> Rows:
        """Return copies of the rows with these numbers; all of them must be stored."""
        ages = np.arange(start - self.first, stop - self.first, dtype=np.int64)
        return self.rows_at(self._contents.remover.by_age(ages))

    def rows_at(self, where: NDArray[np.int64]) -> Rows:
        """Return copies of the rows at positions; all of them must hold rows."""
        if not len(where):
            return []
        # Copying a contiguous range is several times faster than copying rows one by one.
        is_range = bool((np.diff(where) == 1).all())
        assert self._contents.storage is not None
        return self._contents.storage.take(
            slice(int(where[0]), int(where[-1]) + 1) if is_range else where
        )

    def state(self, columns: ColumnCopy | None) -> dict[str, Any]:
        """Return the state of the table without its rows.

        Args:
            columns: Copies of the arrays of sampler and metadata; made if None.
        """
        parts, held, kind = self._contents, self.last - self.first, None
        metadata = parts.metadata
        if parts.storage is not None and held:
            kind = "object" if parts.storage.holds_objects else "array"
        if columns is None:
            columns = ColumnCopy(parts.sampler, parts.metadata, held)
            columns.run()
        of_sampler, of_metadata = columns.finish(held)
        return {
            "version": VERSION,
            "capacity": parts.remover.capacity,
            "storage": kind,
            **parts.computed(),
            "sampler": {**parts.sampler.state_dict(), **of_sampler},
            "remover": parts.remover.state_dict(),
            "limiter": parts.limiter.state_dict(),
            "metadata": {} if metadata is None else {**metadata.state_dict(), **of_metadata},
            **self._entries,
        }

    def oldest_first(self, state: Mapping[str, Any]) -> NDArray[np.int64]:
        """Return the positions of the rows of a :meth:`state` by age; needs no lock."""
        remover = self._contents.factory.remover()
        remover.load_state_dict(state["remover"])
        return remover.oldest_first()

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> Facts:
        """Return the facts that a :meth:`state` holds about rows at positions; needs no lock.

        If rows left early, the result has an entry ``kept``: False for each row that left.
        """
        metadata = self._contents.metadata
        of_metadata = {} if metadata is None else metadata.facts(state["metadata"], where)
        return {**self._contents.sampler.facts(state["sampler"], where), **of_metadata}


class ColumnCopy:
    """Copies the per-position arrays of sampler and metadata, while other threads change them.

    Positions that change during the copy are copied again, the last few when the state is taken.

    Args:
        sampler, metadata: The parts, whose table calls :meth:`note` from now on.
        held: How many positions hold rows.
    """

    def __init__(self, sampler: Sampler, metadata: RowMetadata | None, held: int) -> None:
        self._sampler, self._held, self._rewrites = sampler, held, sampler.rewrites
        self._sources = sampler.columns(), {} if metadata is None else metadata.columns()
        self._changed: deque[Where] = deque()
        self._copies = [
            {name: np.empty_like(source) for name, source in part.items()} for part in self._sources
        ]

    def run(self) -> None:
        """Copy all positions, then the changes made meanwhile; called without the lock."""
        self._copy(slice(0, self._held))
        self._copy_changed()

    def note(self, where: Where) -> None:
        """Record positions whose columns changed; called under the table's lock."""
        self._changed.append(where if isinstance(where, slice) else where.copy())

    def finish(self, positions: int) -> list[dict[str, NDArray[Any]]]:
        """Return the current columns of sampler and metadata; called under the table's lock."""
        self._copy_changed()
        if self._sampler.rewrites != self._rewrites:
            for name, source in self._sources[0].items():
                self._copies[0][name][:positions] = source[:positions]
        return [{name: copy[:positions] for name, copy in part.items()} for part in self._copies]

    def _copy_changed(self) -> None:
        for _ in range(len(self._changed)):
            self._copy(self._changed.popleft())

    def _copy(self, where: Where) -> None:
        for sources, copies in zip(self._sources, self._copies, strict=True):
            for name, source in sources.items():
                copies[name][where] = source[where]


class RowCopy:
    """Copies rows that leave in any order, while other threads push.

    Rows are copied in order of their positions, some at a time; then those that were pushed since.

    Args:
        capacity: Number of positions.
    """

    def __init__(self, capacity: int) -> None:
        self._places = np.zeros(capacity, np.int64)
        """Index of the row at each position among all copied rows."""
        self._lineage = ""
        self._changed: deque[Where] = deque()

    def note(self, where: Where) -> None:
        """Record positions that hold new rows; called under the table's lock."""
        self._changed.append(where if isinstance(where, slice) else where.copy())

    def copy(self, now: TableSnapshot, most: int) -> None:
        """Copy the next ``most`` positions, or as many changed ones; under the table's lock."""
        held = now.last - now.first
        if self._lineage != now.lineage:  # copied rows are of an earlier history
            self._lineage, self._pieces, self._copied, self._next = now.lineage, [], 0, 0
            self._changed.clear()
        if self._next < held:
            where = np.arange(self._next, min(held, self._next + most))
            self._next += len(where)
        else:
            changed, count = [np.empty(0, np.int64)], 0
            while self._changed and count < most:
                changed.append(one_by_one(self._changed.popleft()))
                count += len(changed[-1])
            where = np.unique(np.concatenate(changed))
        if len(where):
            self._pieces.append(now.rows_at(where))
            self._places[where] = np.arange(self._copied, self._copied + len(where))
            self._copied += len(where)

    def finish(self, now: TableSnapshot) -> None:
        """Copy all that is still to be copied; called under the table's lock."""
        held = now.last - now.first
        while self._lineage != now.lineage or self._next < held or self._changed:
            self.copy(now, held)

    def rows(self) -> Rows:
        """Return all copied rows, also earlier ones of positions that were copied again."""
        batches = [piece for piece in self._pieces if isinstance(piece, SampleBatch)]
        if batches:
            return SampleBatch.concat(batches)
        return [row for piece in self._pieces for row in piece]

    def places(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the newest rows at positions among :meth:`rows`."""
        return self._places.take(where)


class _State(msgspec.Struct):
    """The entries, except ``data``, that every state has; types of buffers add more."""

    capacity: int
    storage: Literal["array", "object"] | None
    tail: int
    valid_count: int
    push_count: Natural
    sampler: dict[str, Any]
    remover: dict[str, Any]
    limiter: dict[str, Any]
    metadata: dict[str, Any]


def check_state(state: Mapping[str, Any], capacity: int) -> None:
    """Raise a CheckpointError if an entry of a state, checked without parts or rows, is wrong."""
    version = state.get("version")
    if version != VERSION:
        raise CheckpointVersionError(
            f"the buffer state has version {version!r}; this dingsdk reads {VERSION}",
            found=version,
            expected=VERSION,
        )
    try:
        found = msgspec.convert(dict(state), _State)
    except msgspec.ValidationError as error:
        raise CheckpointCorruptError(f"the buffer state is wrong: {error}") from error
    if found.capacity != capacity:
        raise CheckpointVersionError(
            f"the state is of a buffer of {found.capacity} rows, this one has {capacity}; use the "
            "same replay_buffer_size, or load {'data': state['data']} to push its rows",
            found=found.capacity,
            expected=capacity,
        )


def rows_of(data: Any) -> Rows:
    """Return the rows of a ``data`` entry: a list, a SampleBatch, or columns."""
    if isinstance(data, (SampleBatch, list)):
        return data
    try:
        return SampleBatch(data)
    except SchemaMismatchError as error:
        raise wrong_data(error) from error


def wrong_data(error: Exception) -> CheckpointCorruptError:
    """Return the error for rows in a state that do not fit."""
    return CheckpointCorruptError(f"the buffer state's data is wrong: {error}")
