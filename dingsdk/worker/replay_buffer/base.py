"""The base of the replay buffers: what they share in use, and how their rows are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError, SchemaMismatchError
from dingsdk.worker.replay_buffer.filling import FilledBuffer
from dingsdk.worker.replay_buffer.keeping import state
from dingsdk.worker.replay_buffer.keeping.loading import SavedRows, load
from dingsdk.worker.replay_buffer.keeping.row_reader import FactColumns, RowReader
from dingsdk.worker.replay_buffer.keeping.saving import save
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.storage import Rows, Storage


class ReplayBuffer(FilledBuffer):
    """A buffer whose rows can be saved, and whose whole state can move to another one.

    A subclass that keeps facts about rows overrides :meth:`_extra_state` and
    :meth:`_check_extra_state` besides.
    """

    @cached_property
    def _row_reader(self) -> RowReader:
        return RowReader(self, self._saved_facts)

    def save_data(self, file: str) -> None:
        """Write all rows, oldest first, into the folder ``file`` (made with its parents).

        Columns become ``.npy`` files and objects lines of JSON, listed with their checksums in
        ``manifest.json``, which is replaced last: a reader sees the old rows or the new. So that
        samples can go on, all of :meth:`state_dict` is written beside them.

        Raises:
            RunFolderError: the folder cannot be written.
            SchemaMismatchError: object storage, or the state of a part, holds something other
                than JSON values and numeric arrays; names where.
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()  # before there is a folder
        save(file, self._row_reader)

    def load_data(self, file: str) -> None:
        """Push all rows of a folder that :meth:`save_data` wrote; no limiter is asked.

        A buffer that holds no rows, and has the type, capacity, sampler and remover of the one
        that was saved, goes on where that one stood: rows lie at the positions that they had,
        and with the random state and whatever else :meth:`state_dict` tells, the next samples
        are the same. ``push_count`` is the exception: it counts the loaded rows as pushed now.
        Others wait while such a buffer is filled on disk. Any other buffer, and one whose
        sampler takes no such state (another ``alpha``), takes the rows as new.

        Raises:
            CheckpointMissingError: there is no such folder.
            CheckpointCorruptError, CheckpointVersionError: it was altered, or written by a
                version that this one does not read; nothing was pushed.
            SchemaMismatchError: its rows do not fit those in the buffer; nothing was pushed.
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()
        saved = load(file)
        if not self._go_on_from(saved):
            for rows, facts in saved:
                self._push_loaded(rows, facts)

    def _go_on_from(self, saved: SavedRows) -> bool:
        """Take over saved rows with the state of their buffer; return whether that was possible."""
        described = saved.state
        if described is None or saved.made_of != self._parts.made_of or self.count():
            return False
        try:
            state.check(described, self._capacity)
            return self._become(described, saved.count, saved.whole, as_pushed=True)
        except CheckpointVersionError:
            return False

    def _saved_facts(self, where: NDArray[np.int64]) -> FactColumns:
        """Return what is to be saved of rows besides their columns: arrays ``[rows, ...]``."""
        return {}

    def _push_loaded(self, rows: Rows, facts: FactColumns) -> None:
        """Push loaded rows, with what was saved of them."""
        self._push_unlimited(rows)

    def _push_unlimited(self, rows: Rows) -> None:
        with self._change():
            if len(rows):
                self._insert(rows, len(rows))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of rows, counters and random state, taken at one moment.

        Keys: ``version``, ``capacity``, ``storage`` (``array``, ``object`` or None if empty),
        ``data`` (columns or a list, oldest first), ``tail``, ``valid_count``, ``push_count``,
        ``sampler``, ``limiter``, and what the kind of buffer adds.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()
            ring: Rows = []
            if self._storage is not None and self._remover.count:
                ring = self._storage.take(self._remover.oldest_first())
            return {**state.describe_rows(ring), **self._state_without_rows()}

    def _state_without_rows(self) -> dict[str, Any]:
        return {
            "version": state.VERSION,
            "capacity": self._capacity,
            **self._remover.state_dict(),
            "push_count": self.push_count,
            "sampler": self._sampler.state_dict(),
            "limiter": self._limiter.state_dict(),
            **self._extra_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], deepcopy: bool = False) -> None:
        """Take over a state, so that the next samples are those of its buffer.

        A state of ``data`` alone (demonstrations: rows, or columns) is pushed instead.

        Args:
            state_dict: As :meth:`state_dict` returned it; never written to, and not kept.
            deepcopy: Whether to copy what object storage shares otherwise: the arrays and
                objects in the dicts and lists of a row.

        Raises:
            CheckpointVersionError: it has another version or capacity.
            CheckpointCorruptError: a part is missing or contradicts the others.
            ConfigError, StorageFullError: there is no room for its rows. In all cases of an error
                the buffer is unchanged, but for one on disk, which is left empty by a full disk.
            BufferClosedError: the buffer is closed.
        """
        if deepcopy and "data" in state_dict:
            state_dict = {**state_dict, "data": copy.deepcopy(state_dict["data"])}
        if set(state_dict) == {"data"}:
            self._push_unlimited(state.rows_of(state_dict["data"]))
            return
        state.check(state_dict, self._capacity)
        rows = state.checked_rows(state_dict)
        try:
            self._become(state_dict, len(rows), lambda: [rows] if len(rows) else [])
        except SchemaMismatchError as error:
            raise CheckpointCorruptError(f"the buffer state's data is wrong: {error}") from error

    def _become(
        self,
        described: Mapping[str, Any],
        count: int,
        pieces: Callable[[], Iterable[Rows]],
        as_pushed: bool = False,
    ) -> bool:
        """Take over a state, or raise with nothing changed.

        Args:
            described: The state, checked by itself; its ``data`` is not looked at.
            count: How many rows it has.
            pieces: Returns them, oldest first; may be called again.
            as_pushed: Whether the rows count as pushed now, and only to a buffer without rows.

        Returns:
            Whether it was done: somebody may have pushed meanwhile.

        Raises:
            CheckpointVersionError: a part is another one.
            CheckpointCorruptError: a part of the state is wrong, or contradicts another.
            SchemaMismatchError, ConfigError: the storage does not take the rows.
        """
        # All parts are made aside, so that a wrong one changes nothing.
        parts = self._parts
        remover, limiter, sampler = parts.remover(), parts.limiter(), parts.sampler()
        remover.load_state_dict(described)
        limiter.load_state_dict(described["limiter"])
        sampler.load_state_dict(described["sampler"])
        state.check_count(count, remover.count)
        storage = None if self._commits else self._new_storage(described["storage"])
        if storage is not None or self._sampler_listens or self.used_data is not None:
            for where, rows in state.placed(remover, pieces()):
                if storage is not None:
                    storage.put(where, storage.accept(rows))
                sampler.on_insert(where, rows)
                if self.used_data is not None:
                    self.used_data.check(rows)
        use_extra = self._check_extra_state(described, sampler)
        with self._change():
            if as_pushed and self._count():
                return False
            pushed_before = self.push_count
            self._empty()
            if self._commits:
                # There is one such storage; should its disk be full, the buffer is left empty.
                assert self._storage is not None
                self._storage.expect(count)
                for where, rows in state.placed(remover, pieces()):
                    self._storage.put(where, self._storage.accept(rows))
            else:
                self._use_storage(storage)
            self._remover = remover
            self._use_limiter(limiter)
            self._use_sampler(sampler)
            # The rows of the state count as pushed here, so that totals keep adding up.
            self._pushed += count
            use_extra()
            push_count = pushed_before + self._count() if as_pushed else described["push_count"]
            self._pushed_before_clear = self._pushed - push_count
            if self.used_data is not None:
                self._track(remover.oldest_first())
            self._let_go()
            if self._commits:
                self._commit()
        return True

    def _new_storage(self, kind: str | None) -> Storage | None:
        """Return a new storage for the rows of a state; None to leave it to the first push."""
        if not self._parts.chooses_storage:
            return self._parts.storage()
        return None if kind is None else self._parts.storage(kind)

    def _let_go(self) -> None:
        """Remove rows of a new state that this buffer, by its settings, would not hold."""

    def _extra_state(self) -> dict[str, Any]:
        """Return what the state needs beyond that of the base."""
        return {}

    def _check_extra_state(
        self, state_dict: Mapping[str, Any], sampler: Sampler
    ) -> Callable[[], None]:
        """Check the extra state; return what puts it into force once the old one is gone.

        Args:
            state_dict: The whole state.
            sampler: The new sampler, its own state loaded, which knows the rows.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: with nothing changed.
        """
        return lambda: None
