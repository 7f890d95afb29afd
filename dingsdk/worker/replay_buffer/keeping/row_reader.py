"""Reading the rows of a buffer piece by piece, while others use it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.remover import FifoRemover, Remover, Where
from dingsdk.worker.replay_buffer.storage import Rows
from dingsdk.worker.replay_buffer.storage.episodes import EpisodeColumns

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.base import ReplayBuffer

KEPT = "kept"
"""Fact: whether the row has not left before its turn (used up, stale)."""

FactColumns = Mapping[str, NDArray[Any]]
"""What a buffer keeps about rows and may change while they are stored: arrays ``[rows, ...]``."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows, as of one moment.

    Attributes:
        rows: Copies of the rows ``start`` and later; of episodes in columns all their steps.
        lengths: int64[episodes], steps of each, where rows are such episodes; else None.
        start: Push index of the first of them.
        first: Push index of the oldest row in the buffer at that moment.
        last: Push index after the newest.
        steps: Those of all episodes in the buffer, where rows are such; else all rows.
        facts: About all rows of the buffer, where the piece reaches the newest.
        state: That of the buffer, without its rows, where the piece reaches the newest.
        made_of: What the state is of: types of the buffer and its parts.
        lineage: Random name of the history that push indices count.
    """

    rows: Rows
    lengths: NDArray[np.int64] | None
    start: int
    first: int
    last: int
    steps: int
    facts: FactColumns
    state: Mapping[str, Any]
    made_of: Mapping[str, str]
    lineage: str

    @property
    def stop(self) -> int:
        """Push index after the last of the rows."""
        return self.start + len(self.rows if self.lengths is None else self.lengths)


class RowReader:
    """Reads a buffer's rows by push index: how many were pushed before them, ever.

    Args:
        buffer: The buffer; its lock is what :meth:`hold` returns.
        facts: Returns facts about rows at positions; called under the lock.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        facts: Callable[[NDArray[np.int64]], FactColumns] = lambda where: {},
    ) -> None:
        self._buffer = buffer
        self._remover: Remover | None = None
        self._history = ""
        self._facts = facts

    @property
    def is_ordered(self) -> bool:
        """Whether rows only leave oldest first."""
        return isinstance(self._buffer._remover, FifoRemover)

    def hold(self) -> Any:
        """Return the buffer's lock."""
        return self._buffer._lock

    def read(self, start: int, stop: int) -> Piece:
        """Copy rows ``start`` to ``stop``, as far as there are; call with the lock held.

        Raises:
            BufferClosedError: the buffer is closed.
        """
        buffer = self._buffer
        buffer._check_open()
        remover, last = buffer._remover, buffer._pushed
        if remover is not self._remover:
            # A loaded state brings rows that were not pushed here, and may number them anew.
            self._remover, self._history = remover, secrets.token_hex(16)
        # A forked process goes its own way from here on.
        lineage = f"{self._history}-{os.getpid()}"
        first = last - remover.count
        start, stop = max(start, first), min(stop, last)
        rows: Rows = []
        lengths, steps = None, last - first
        storage = buffer._storage
        if start < stop:
            assert storage is not None
            ages = np.arange(start - first, stop - first, dtype=np.int64)
            where = _as_slice(remover.by_age(ages))
            if isinstance(storage, EpisodeColumns):
                rows, lengths = storage.take_steps(where)
                steps = storage.steps
            else:
                rows = storage.take(where)
        is_last = stop == last
        return Piece(
            rows=rows,
            lengths=lengths,
            start=start,
            first=first,
            last=last,
            steps=steps,
            facts=self._all_facts() if is_last else {},
            state=buffer._state_without_rows() if is_last else {},
            made_of=buffer._parts.made_of,
            lineage=lineage,
        )

    def _all_facts(self) -> FactColumns:
        where = self._buffer._remover.oldest_first()
        facts = dict(self._facts(where))
        living = self._buffer._living(where)
        if isinstance(living, np.ndarray) and len(living) < len(where):
            facts[KEPT] = np.isin(where, living)
        return facts


def _as_slice(where: NDArray[np.int64]) -> Where:
    # A contiguous range is copied several times faster than rows one by one.
    if (np.diff(where) == 1).all():
        return slice(int(where[0]), int(where[-1]) + 1)
    return where
