"""Which payload each stored row came from, and which of its rows it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.storage import Where

_NONE = -1
"""The origin of a position whose row has left, or that was never used."""


class Origins:
    """Counts the rows of each payload that leave. The table calls it under its lock.

    Args:
        capacity: Number of positions of the table.
        notes_rows: Whether to note which of its rows a row is.

    Attributes:
        left: Rows that left, by (payload, reason), since :meth:`take_left`.
    """

    def __init__(self, capacity: int, *, notes_rows: bool) -> None:
        self._of = np.full(capacity, _NONE, np.int64)
        self._row = np.zeros(capacity, np.int64) if notes_rows else None
        self._payload = _NONE
        self._rows = 0
        self.left: Counter[tuple[int, str]] = Counter()

    def begin(self, payload: int) -> None:
        """Note the number of the payload whose rows are pushed from now on."""
        self._payload, self._rows = payload, 0

    def insert(self, where: Where) -> None:
        """Record that the next rows of the payload were stored at positions that hold no row."""
        self._of[where] = self._payload
        if self._row is None:
            return
        count = where.stop - where.start if isinstance(where, slice) else len(where)
        self._row[where] = np.arange(self._rows, self._rows + count)
        self._rows += count

    def stored(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return all positions with rows, and the payload and the row in it: int64[n] each.

        Only for origins that note rows.
        """
        assert self._row is not None
        where = np.flatnonzero(self._of != _NONE)
        return where, self._of[where], self._row[where]

    def remove(self, where: Where, reason: str) -> None:
        """Record that the rows at positions have left; positions without a row are ignored."""
        numbers = self._of[where]
        each, counts = np.unique(numbers[numbers != _NONE], return_counts=True)
        self._of[where] = _NONE
        for number, count in zip(each.tolist(), counts.tolist(), strict=True):
            self.left[number, reason] += count

    def take_left(self) -> list[tuple[int, str, int]]:
        """Return ``(payload, reason, rows)`` of the rows that left since the last call."""
        left, self.left = self.left, Counter()
        return [(number, reason, count) for (number, reason), count in left.items()]
