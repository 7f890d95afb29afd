"""Filling a replay buffer and emptying it: where rows come in, and go."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from time import monotonic
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.pytree import copy_containers
from dingsdk.errors import BufferFullError
from dingsdk.worker.replay_buffer.core import BufferCore
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.storage import Rows, Storage, suits_arrays
from dingsdk.worker.replay_buffer.watching.listeners import RemoveListener

ADOPT_ROWS = 1 << 16
"""Rows of a recovered storage that are looked at at once."""


class FilledBuffer(BufferCore):
    """A buffer that rows are pushed into, and leave.

    A subclass that keeps facts about rows says so in ``_keeps_facts`` and overrides
    :meth:`_start_facts`, :meth:`_split`, :meth:`_on_stored`, :meth:`_living` and
    :meth:`_forget`.
    """

    _keeps_facts: ClassVar[bool] = False

    def _begin(self) -> None:
        self._start_facts()
        if self._storage is not None:
            self._adopt(self._storage)

    def _adopt(self, storage: Storage) -> None:
        """Take over the rows that a storage on disk holds from an earlier process."""
        recovered = storage.recovered()
        if recovered is None:
            return
        self._remover.load_state_dict(recovered)
        count = self._remover.count
        self._limiter.on_insert(count)
        for start in range(0, count, ADOPT_ROWS):
            ages = np.arange(start, min(start + ADOPT_ROWS, count), dtype=np.int64)
            where = self._remover.by_age(ages)
            if self._sampler_listens or self._keeps_facts or self.used_data is not None:
                rows, facts = self._split(storage.take(where))
                self._sampler.on_insert(where, rows)
                self._on_stored(where, facts, 0)
                marks = storage.recovered_marks(where)
                if marks is not None:
                    self._on_marked(where, marks)
                if self.used_data is not None:
                    self._track(where)
        self._pushed = count
        self._pushed_before_clear = count - recovered.get("push_count", count)
        self._on_recovered(recovered)

    def _track(self, where: Where) -> None:
        """Have the files of stored rows deleted once these leave, but for those that have."""
        living = self._living(where)
        n = living.stop - living.start if isinstance(living, slice) else len(living)
        if n:
            self.used_data.on_stored(self._storage.take(living))  # type: ignore[union-attr]

    def push(self, data: Any, cur_collector_envstep: int, timeout_s: float | None = None) -> None:
        """Add rows, overwriting the oldest of a full buffer.

        What is pushed is copied and never written to. The first push decides what the buffer
        holds (``storage.type: auto``): columns for SampleBatch and dicts of numbers and arrays,
        objects otherwise.

        Args:
            data: A SampleBatch or a list (many rows), or anything else (one row, a tuple
                included). Of more rows than the capacity, the newest stay.
            cur_collector_envstep: Env steps collected so far.
            timeout_s: Seconds to wait for the limiter to admit the rows; None: not at all.

        Raises:
            SchemaMismatchError: a row does not fit those before; nothing was pushed.
            BufferFullError: the limiter did not admit the rows; nothing was pushed. The default
                limiter admits everything.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        # A dict is the hot case of a single row; a copy of 45 bytes must not make a batch first.
        single = type(data) is dict
        rows = data if single or isinstance(data, (SampleBatch, list)) else [data]
        n = 1 if single else len(rows)
        with self._lock:
            if self._closed:
                self._check_open()
            if n == 0:
                return
            if not self._limiter.can_insert(n):
                self._wait_to_insert(n, timeout_s)
            if single:
                self._insert_one(rows)
            else:
                self._insert(rows, n)
            if self._gate.waiting:
                self._gate.wake()
            departures = self._listeners.collect() if self._listeners.untold else None
        if departures:
            self._listeners.tell(departures)
        if monotonic() >= self._monitor.next_report_s:
            self._monitor.report(self.stats())

    def _insert(self, rows: Rows, n: int) -> None:
        """Store rows, or raise with nothing changed."""
        facts = None
        if self._keeps_facts:
            rows, facts = self._split(rows)
        if self._sampler_listens:
            self._sampler.check_rows(rows)
        if self.used_data is not None:
            self.used_data.check(rows)
        storage = self._storage
        if storage is None:
            storage = self._parts.storage(self._storage_kind(rows))
        # From here on nothing fails: either all rows are in, or none and nothing changed.
        accepted = storage.accept(rows)
        if storage is not self._storage:
            self._use_storage(storage)
        if self.used_data is not None:
            self.used_data.on_stored(rows)
        surplus = n - self._capacity
        where, leaving = (
            self._remover.allot(n) if surplus <= 0 else self._remover.allot_all(surplus)
        )
        if leaving is not None:
            self._remove(leaving, "overwritten")
        if surplus > 0:
            # Rows that are overtaken within one push were in the buffer for no time at all.
            if self._listeners.active:
                overtaken = self._present(_own_copy(rows[:surplus], accepted))
                self._listeners.note(overtaken, "overwritten")
            if self._sampler_listens:
                self._sampler.on_skip(rows[:surplus])
            rows, accepted = rows[surplus:], accepted[surplus:]
            self._left["overwritten"] += surplus
            self._limiter.on_remove(surplus)
        storage.put(where, accepted)
        self._pushed += n
        self._limiter.on_insert(n)
        if self._sampler_listens:
            self._sampler.on_insert(where, rows)
        if facts is not None:
            self._on_stored(where, facts, max(surplus, 0))
        if self._commits:
            self._commit()

    def _storage_kind(self, rows: Rows) -> str:
        """Return the type of storage that ``auto`` means for first rows."""
        return "array" if suits_arrays(rows) else "object"

    def _insert_one(self, row: Any) -> None:
        """Store one row, or raise with nothing changed."""
        storage = self._storage
        if storage is None or self._sampler_listens or self.used_data is not None:
            self._insert([row], 1)
            return
        facts = None
        if self._keeps_facts:
            (row,), facts = self._split([row])
        accepted = storage.accept_one(row)
        position, leaves = self._remover.allot_one()
        if leaves:
            if facts is not None or self._listeners.active:
                self._remove(slice(position, position + 1), "overwritten")
            else:
                self._left["overwritten"] += 1
                self._limiter.on_remove(1)
        storage.put_one(position, accepted)
        self._pushed += 1
        self._limiter.on_insert(1)
        if facts is not None:
            self._on_stored(slice(position, position + 1), facts, 0)
        if self._commits:
            self._commit()

    def _commit(self) -> None:
        assert self._storage is not None
        self._storage.commit({**self._remover.state_dict(), **self._counters()})

    def _counters(self) -> dict[str, int]:
        """Return what a storage on disk is to keep for :meth:`_on_recovered`, but for rows."""
        return {"push_count": self.push_count}

    def _on_recovered(self, state: Mapping[str, int]) -> None:
        """Take in what an earlier process kept, its rows being there."""

    def _remove(self, where: Where, reason: str) -> None:
        """Let go of rows at positions, oldest first; their positions are not free for it."""
        if self._keeps_facts:
            where = self._living(where)
        n = where.stop - where.start if isinstance(where, slice) else len(where)
        if self._listeners.active:
            self._listeners.note(self._take(where), reason)
        if self._sampler_listens:
            self._sampler.on_remove(where)
        self._left[reason] += n
        self._limiter.on_remove(n)

    def _wait_to_insert(self, n: int, timeout_s: float | None) -> None:
        if not self._wait_for(lambda: self._limiter.can_insert(n), timeout_s):
            raise BufferFullError(
                f"{self.instance_name}: its limiter does not admit {n} more rows before "
                f"more were sampled (waited {timeout_s or 0:g} s); push again later",
                rows=n,
                waited_s=timeout_s or 0.0,
            )

    def clear(self) -> None:
        """Drop all rows; ``push_count`` starts at 0 again, and the schema is free.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        with self._change():
            self._empty()

    def _empty(self) -> None:
        count = self._count()
        if self._storage is not None and self._listeners.active:
            self._listeners.note(self._present(self._contents()), "cleared")
        if self._parts.chooses_storage:
            self._use_storage(None)
        elif self._storage is not None:
            self._storage.clear()
        self._remover.clear()
        self._sampler.clear()
        self._limiter.reset()
        self._forget()
        self._left["cleared"] += count
        self._pushed_before_clear = self._pushed

    def add_remove_listener(self, listener: RemoveListener) -> None:
        """Call ``listener(rows, reason)`` whenever rows leave, after each such operation.

        It gets a copy of the rows, oldest first (a SampleBatch, or a list for object storage),
        and why: ``"overwritten"``, ``"cleared"`` (also for :meth:`close` and a loaded state),
        ``"stale"`` or ``"used_up"``. It runs outside the buffer's lock; what it raises is logged
        and goes no further.
        """
        with self._lock:
            self._listeners.add(listener)

    def _contents(self) -> Rows:
        if self._storage is None or self._count() == 0:
            return []
        return self._storage.take(self._living(self._remover.oldest_first()))

    # For subclasses that keep facts about rows ------------------------------------------------
    def _start_facts(self) -> None:
        """Make what facts are kept in; called once, after all parts are there."""

    def _split(self, rows: Rows) -> tuple[Rows, Any]:
        """Return the rows to store, and facts about them (or None) for :meth:`_on_stored`.

        Called before anything changed; may raise.
        """
        return rows, None

    def _on_stored(self, where: Where, facts: Any, first: int) -> None:
        """Take in the facts of rows ``first`` and later, which are stored at positions."""

    def _on_marked(self, where: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
        """Take in what an earlier process marked stored rows with."""

    def _living(self, where: Where) -> Where:
        """Return those of some positions whose rows have not left yet."""
        return where

    def _forget(self) -> None:
        """Drop the facts of all rows."""


def _own_copy(rows: Rows, accepted: Rows) -> Rows:
    """Return rows that are not stored in the form in which those that are come back."""
    if isinstance(rows, list) and isinstance(accepted, SampleBatch):
        return SampleBatch.from_rows(rows)
    if isinstance(rows, list):
        return [copy_containers(row) for row in rows]
    owned = rows.copy()
    return owned if isinstance(accepted, SampleBatch) else [copy.copy(row) for row in owned]
