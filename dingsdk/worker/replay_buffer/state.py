"""The state of a table, on which its future samples depend; and how it is saved and restored.

A state is plain data: the entries of :class:`_State`, ``data`` with the rows, and the entries that
the kind of buffer adds.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError, SchemaMismatchError
from dingsdk.worker.replay_buffer.remover import Remover
from dingsdk.worker.replay_buffer.storage import Rows, Storage, Where

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.interface import NoMetadata
    from dingsdk.worker.replay_buffer.persistence import SavedRows
    from dingsdk.worker.replay_buffer.row_metadata import RowMetadata
    from dingsdk.worker.replay_buffer.table import Table

VERSION = 2
"""Version of a buffer's saved state."""
KEPT = "kept"
"""Name of the fact that is True for a row that has not left early (used up, stale)."""
LEFT = -1
"""The mark of a row that left early; the mark of any other row is how often it was sampled."""
END = 1
"""In a buffer without row metadata, the mark of a row after which the trajectory was ended."""

_CHANGES_LEFT = 64
"""About the most changed pieces that saving a buffer copies while other threads wait."""

Natural = Annotated[int, msgspec.Meta(ge=0)]
Facts = dict[str, NDArray[Any]]


class LockedTable:
    """Reads a table whose lock is held; the number of a row is how many were pushed before it.

    Attributes:
        first: Number of the oldest row.
        last: Number after that of the newest row.
        lineage: Random name of the history in which rows are numbered; a new history starts when
            the table is cleared or loads a state.
        is_ordered: Whether rows only leave oldest first.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.last = table._pushed
        self.first = self.last - table._remover.count
        # A forked process has a different history, so its id is part of the name.
        self.lineage = f"{table._history}-{os.getpid()}"
        self.is_ordered = table._remover.is_fifo
        self.made_of = table._parts.made_of

    @property
    def has_columns(self) -> bool:
        """Whether its state has arrays with one entry for each position, besides rows."""
        return bool(self._table._sampler.columns() or self._table._metadata.columns())

    def rows(self, start: int, stop: int) -> Rows:
        """Return copies of the rows ``start`` to ``stop``; all of them must be stored."""
        if start == stop:
            return []
        ages = np.arange(start - self.first, stop - self.first, dtype=np.int64)
        where = self._table._remover.by_age(ages)
        # Copying a contiguous range is several times faster than copying rows one by one.
        is_range = bool((np.diff(where) == 1).all())
        storage: Storage = self._table._storage  # type: ignore[assignment]
        return storage.take(slice(int(where[0]), int(where[-1]) + 1) if is_range else where)

    def state(self, columns: ColumnCopy | None = None) -> dict[str, Any]:
        """Return the state of the table without its rows; ``columns`` has copies of its arrays."""
        table, storage, kind = self._table, self._table._storage, None
        if storage is not None and self.first < self.last:
            kind = "object" if storage.holds_objects else "array"
        held = table._remover.count
        of_sampler, of_metadata = (None, None) if columns is None else columns.finish(held)
        return {
            "version": VERSION,
            "capacity": table.replay_buffer_size,
            "storage": kind,
            "push_count": table.push_count,
            **_described(table._remover, table._metadata),
            "sampler": table._sampler.state_dict(*([of_sampler] if of_sampler else ())),
            "remover": table._remover.state_dict(),
            "limiter": table._limiter.state_dict(),
            "metadata": table._metadata.state_dict(held, of_metadata or None),
            **table._extra_state(),
        }


class ColumnCopy:
    """Copies the per-position arrays of a table's state, while other threads use the table.

    Positions that change during the copy are copied again, the last few when the state is taken.
    Construct it without the table's lock.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._changed: deque[Where] = deque()
        with table.snapshot():
            table._copies = (*table._copies, self)
            table._choose_push_path()
            self._sources = table._sampler.columns(), table._metadata.columns()
            self._rewrites = table._sampler.rewrites
            self._held = table._remover.count
        self._copies = [
            {name: np.empty_like(source) for name, source in part.items()} for part in self._sources
        ]

    def close(self) -> None:
        """Stop recording changes; called without the table's lock."""
        table = self._table
        with table._lock:
            table._copies = tuple(each for each in table._copies if each is not self)
            table._choose_push_path()

    def run(self) -> None:
        """Copy all positions, then most of the changes made since; called without the lock."""
        self._copy(slice(0, self._held))
        before = sys.maxsize
        while before > (left := len(self._changed)) > _CHANGES_LEFT:
            before = left
            self._copy_changed(left)

    def note(self, where: Where) -> None:
        """Record positions whose columns changed; called under the table's lock."""
        self._changed.append(where if isinstance(where, slice) else where.copy())

    def finish(self, positions: int) -> list[dict[str, NDArray[Any]]]:
        """Return the current columns of sampler and metadata; called under the table's lock."""
        self._copy_changed(len(self._changed))
        if self._table._sampler.rewrites != self._rewrites:
            for name, source in self._sources[0].items():
                self._copies[0][name][:positions] = source[:positions]
        return [{name: copy[:positions] for name, copy in part.items()} for part in self._copies]

    def _copy_changed(self, most: int) -> None:
        for _ in range(min(most, len(self._changed))):
            self._copy(self._changed.popleft())

    def _copy(self, where: Where) -> None:
        for sources, copies in zip(self._sources, self._copies, strict=True):
            for name, source in sources.items():
                copies[name][where] = source[where]


def facts_in(table: Table, state: Mapping[str, Any]) -> Facts:
    """Return the facts that a state holds about rows, oldest first, as arrays of one value a row.

    If rows left early, the result has an entry ``kept``: False for each row that left.
    """
    remover = table._parts.remover()
    remover.load_state_dict(state["remover"])
    where = remover.oldest_first()
    of_sampler = table._sampler.facts(state["sampler"], where)
    return {**of_sampler, **table._metadata.facts(state["metadata"], where)}


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


def _check(state: Mapping[str, Any], capacity: int) -> None:
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


def resume(table: Table, saved: SavedRows, as_pushed: bool = False) -> bool:
    """Restore the state that was saved with rows; see ``_restore``."""
    _check(saved.state, table.replay_buffer_size)
    return _restore(table, saved.state, saved.count, saved.whole, as_pushed)


def load(table: Table, state: Mapping[str, Any]) -> None:
    """Restore a state with its rows; see :meth:`Table.load_state_dict`."""
    _check(state, table.replay_buffer_size)
    rows = rows_of(state.get("data"))
    # Episodes are a list in columns too.
    kinds = ("array",) if isinstance(rows, SampleBatch) else ("object", "array")
    if state["storage"] not in (kinds if len(rows) else (None,)):
        raise CheckpointCorruptError(
            f"the buffer state's storage is {state['storage']!r}, but its data is of {kinds[0]!r}"
        )
    try:
        _restore(table, state, len(rows), lambda: [rows] if len(rows) else [])
    except SchemaMismatchError as error:
        raise _wrong_data(error) from error


def rows_of(data: Any) -> Rows:
    """Return the rows of a ``data`` entry: a list, a SampleBatch, or columns."""
    if isinstance(data, (SampleBatch, list)):
        return data
    try:
        return SampleBatch(data)
    except SchemaMismatchError as error:
        raise _wrong_data(error) from error


def _wrong_data(error: Exception) -> CheckpointCorruptError:
    return CheckpointCorruptError(f"the buffer state's data is wrong: {error}")


def _restore(
    table: Table,
    state: Mapping[str, Any],
    count: int,
    pieces: Callable[[], Iterable[Rows]],
    as_pushed: bool = False,
) -> bool:
    """Restore a checked state, or raise and change nothing; the table's lock is not held.

    Args:
        table: The table.
        state: The state; its ``data`` is not used.
        count: Number of rows of the state.
        pieces: Returns the rows in pieces, oldest first; may be called again.
        as_pushed: Whether the rows count as pushed now; then the table must be empty.

    Returns:
        Whether the state was restored. False if ``as_pushed`` and another thread pushed first.
    """
    # New parts are made first, so that a wrong state changes nothing.
    parts = table._parts
    with table._lock:
        table._check_open()  # a closed table has no storage, so it would not seem durable
        is_durable = table._is_durable
    remover, limiter, sampler = (
        parts.remover(),
        parts.limiter(),
        parts.sampler(table.sampler_family()),
    )
    remover.load_state_dict(state["remover"])
    limiter.load_state_dict(state["limiter"])
    sampler.load_state_dict(state["sampler"])
    if count != remover.count:
        raise CheckpointCorruptError(
            f"the buffer state has {count} rows and counts {remover.count}"
        )
    metadata = table._metadata.restored(state["metadata"], count)
    for key, value in _described(remover, metadata).items():
        if state.get(key) != value:
            raise CheckpointCorruptError(
                f"{key} is {state.get(key)!r}, but the parts of the state give {value!r}"
            )
    storage, kind = None, state["storage"]
    if not (is_durable or (parts.chooses_storage and kind is None)):
        storage = table._new_storage(kind if parts.chooses_storage else None)
    if storage is not None or table._sampler_listens or table._listeners:
        for where, rows in _placed(remover, pieces()):
            if storage is not None:
                storage.put(where, storage.accept(rows))
            sampler.on_restore(where, rows)
            for listener in table._listeners:
                listener.check(rows)
    with table._change():
        if as_pushed and table._count:
            return False
        table._load_extra_state(state, sampler, metadata)
        pushed_before = table.push_count
        table._empty()
        if table._is_durable:
            # A durable storage is reused, not replaced; a full disk leaves the buffer empty.
            assert table._storage is not None
            for where, rows in _placed(remover, pieces()):
                table._storage.put(where, table._storage.accept(rows))
        else:
            table._storage = storage
        table._remover, table._metadata = remover, metadata
        table._limiter, table._sampler = limiter, sampler
        table._choose_push_path()
        # The rows of the state count as pushed here, so that totals add up. The state does not
        # contain the reason for which rows left early.
        table._pushed += count
        limiter.size = table._count = metadata.count(count)
        table._left["used_up"] += count - table._count
        push_count = pushed_before + table._count if as_pushed else state["push_count"]
        table._pushed_before_clear = table._pushed - push_count
        table._announce(partial(table._call_listeners, "on_insert"), table._listeners)
        if metadata.keeps_facts and count:
            # Remove rows that are used up under the settings of this buffer.
            table._storage.mark(remover.oldest_first(), LEFT)  # type: ignore[union-attr]
            facts = cast("RowMetadata", metadata)
            for where in list(table._living()):
                # Without a limit, marks do not count uses: the sampling does not update them.
                table._use_up(where, facts.uses(where) * facts.limits_use)
        if table._is_durable:
            table._mark_ends(sampler.early_ends())
            table._storage.commit(table._committed_state())  # type: ignore[union-attr]
    return True


def recover(table: Table) -> None:
    """Restore the rows that an earlier process stored in a durable storage."""
    storage = table._storage
    if storage is None or (recovered := storage.recovered()) is None:
        return
    table._remover.load_state_dict(recovered)
    metadata, count = table._metadata, table._remover.count
    table._pushed = table._count = count
    table._limiter.on_insert(count)
    if metadata.keeps_facts:
        # Rows of an earlier process keep their ids.
        newest = recovered.get("next_unique_id", recovered.get("push_count", count))
        cast("RowMetadata", metadata).next_id = newest - count
    table._sampler.recover(recovered)
    if table._marks_ends:
        marks = storage.recovered_marks(table._remover.oldest_first())
        if marks is not None:
            table._sampler.recover_ends(np.flatnonzero(marks == END))
    if table._sampler_listens or metadata.keeps_facts:
        for where in table._positions():
            rows, facts = metadata.prepare(storage.take(where))
            if facts is not None:
                metadata.insert(where, facts)
            table._sampler.on_insert(where, rows, None if facts is None else facts.priorities)
    # The process that pushed the rows has ended, so nobody continues their trajectory.
    table.end_newest_trajectory()
    table._pushed_before_clear = count - recovered.get("push_count", count)
    if not metadata.keeps_facts:
        return
    # Row metadata of this kind also keeps how often rows were sampled.
    metadata = cast("RowMetadata", metadata)
    where = table._remover.oldest_first()
    marks = storage.recovered_marks(where)
    if marks is not None:
        metadata.set_uses(where, marks.clip(0))
        table._remove(where[marks == LEFT], "used_up")  # or stale: the reason is not stored


def _described(remover: Remover, metadata: NoMetadata) -> dict[str, Any]:
    """Return the entries of a state that are computed from its parts."""
    count = remover.count
    newest = remover.by_age(np.arange(count - 1, count, dtype=np.int64)) if count else [-1]
    tail = (int(newest[0]) + 1) % remover.capacity
    ids = {"next_unique_id": metadata.next_id} if metadata.keeps_facts else {}
    return {"tail": tail, "valid_count": count, **ids}


def _placed(remover: Remover, pieces: Iterable[Rows]) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """Return the pieces of rows, which are oldest first, with the positions of the rows."""
    first = 0
    for rows in pieces:
        yield remover.by_age(np.arange(first, first + len(rows), dtype=np.int64)), rows
        first += len(rows)
