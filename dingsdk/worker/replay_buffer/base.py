"""The base of the replay buffers: what they share in use, and how their rows are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.filling import FilledBuffer
from dingsdk.worker.replay_buffer.keeping import state
from dingsdk.worker.replay_buffer.keeping.loading import load
from dingsdk.worker.replay_buffer.keeping.row_reader import FactColumns, RowReader
from dingsdk.worker.replay_buffer.keeping.saving import save
from dingsdk.worker.replay_buffer.remover import Remover
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
        ``manifest.json``, which is replaced last: a reader sees the old rows or the new.

        Raises:
            RunFolderError: the folder cannot be written.
            SchemaMismatchError: object storage holds something other than JSON values and
                numeric arrays; names where.
            BufferClosedError: the buffer is closed.
        """
        with self._lock:
            self._check_open()  # before there is a folder
        save(file, self._row_reader)

    def load_data(self, file: str) -> None:
        """Push all rows of a folder that :meth:`save_data` wrote; no limiter is asked.

        Raises:
            CheckpointMissingError: there is no such folder.
            CheckpointCorruptError, CheckpointVersionError: it was altered, or written by a
                version that this one does not read; nothing was pushed.
            SchemaMismatchError: its rows do not fit those in the buffer; nothing was pushed.
            BufferClosedError: the buffer is closed.
        """
        for rows, facts in load(file):
            self._push_loaded(rows, facts)

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
            return {
                **state.describe_rows(ring),
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
            CheckpointCorruptError: a part is missing or contradicts the others. In all cases of
                an error the buffer is unchanged.
            BufferClosedError: the buffer is closed.
        """
        if deepcopy and "data" in state_dict:
            state_dict = {**state_dict, "data": copy.deepcopy(state_dict["data"])}
        if set(state_dict) == {"data"}:
            self._push_unlimited(state.rows_of(state_dict["data"]))
            return
        rows = state.check(state_dict, self._capacity)
        # All parts are made aside, so that a wrong one changes nothing.
        parts = self._parts
        remover, limiter, sampler = parts.remover(), parts.limiter(), parts.sampler()
        remover.load_state_dict(state_dict)
        limiter.load_state_dict(state_dict["limiter"])
        sampler.load_state_dict(state_dict["sampler"])
        state.check_count(rows, remover.count)
        storage = None if self._commits else self._filled_storage(state_dict, rows, remover)
        if len(rows):
            sampler.on_insert(remover.oldest_first(), rows)
        use_extra = self._check_extra_state(state_dict, sampler)
        if self.used_data is not None and len(rows):
            self.used_data.check(rows)
        with self._change():
            self._empty()
            if self._commits:
                # There is one such storage; should its disk be full, the buffer is left empty.
                assert self._storage is not None
                if len(rows):
                    state.fill(self._storage, remover, rows)
            else:
                self._use_storage(storage)
            self._remover = remover
            self._use_limiter(limiter)
            self._use_sampler(sampler)
            # The rows of the state count as pushed here, so that totals keep adding up.
            self._pushed += len(rows)
            self._pushed_before_clear = self._pushed - state_dict["push_count"]
            if self.used_data is not None:
                self.used_data.on_stored(rows)
            use_extra()
            if self._commits:
                self._commit()

    def _filled_storage(
        self, state_dict: Mapping[str, Any], rows: Rows, remover: Remover
    ) -> Storage | None:
        """Return a new storage with the rows of a state; None to leave it to the first push."""
        if not self._parts.chooses_storage:
            storage = self._parts.storage()
        elif len(rows):
            storage = self._parts.storage(state_dict["storage"])
        else:
            return None
        if len(rows):
            state.fill(storage, remover, rows)
        return storage

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
