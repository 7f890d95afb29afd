"""Which payload each stored row came from: a payload is needed while one of its rows is stored."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dingsdk.worker.replay_buffer.storage import Where

_NONE = -1
"""The origin of a position whose row has left, or that was never used."""


class Origins:
    """Counts the stored rows of each payload. The table calls it under its lock.

    Args:
        capacity: Number of positions of the table.

    Attributes:
        current: Number of the payload whose rows are being pushed.
        left: Rows that left, by (payload, reason), since :meth:`take_left`.
    """

    def __init__(self, capacity: int) -> None:
        self._of = np.full(capacity, _NONE, np.int64)
        self._stored: Counter[int] = Counter()
        self.current = _NONE
        self.left: Counter[tuple[int, str]] = Counter()

    def insert(self, where: Where) -> None:
        """Record that rows of the current payload were stored at positions that hold no row."""
        self._of[where] = self.current
        count = where.stop - where.start if isinstance(where, slice) else len(where)
        self._stored[self.current] += count

    def remove(self, where: Where, reason: str) -> None:
        """Record that the rows at positions have left; positions without a row are ignored."""
        numbers = self._of[where]
        each, counts = np.unique(numbers[numbers != _NONE], return_counts=True)
        self._of[where] = _NONE
        for number, count in zip(each.tolist(), counts.tolist(), strict=True):
            self._stored[number] -= count
            if not self._stored[number]:
                del self._stored[number]
            self.left[number, reason] += count

    def stored(self, number: int) -> int:
        """Return how many rows of a payload are stored."""
        return self._stored[number]

    def take_left(self) -> list[tuple[int, str, int]]:
        """Return ``(payload, reason, rows)`` of the rows that left since the last call."""
        left, self.left = self.left, Counter()
        return [(number, reason, count) for (number, reason), count in left.items()]
