"""Which payload each stored row came from."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dingsdk.worker.replay_buffer.storage import Where

_NONE = -1
"""The origin of a position whose row has left, or that was never used."""


class Origins:
    """Counts the rows of each payload that leave. The table calls it under its lock.

    Args:
        capacity: Number of positions of the table.

    Attributes:
        current: Number of the payload whose rows are being pushed.
        left: Rows that left, by (payload, reason), since :meth:`take_left`.
    """

    def __init__(self, capacity: int) -> None:
        self._of = np.full(capacity, _NONE, np.int64)
        self.current = _NONE
        self.left: Counter[tuple[int, str]] = Counter()

    def insert(self, where: Where) -> None:
        """Record that rows of the current payload were stored at positions that hold no row."""
        self._of[where] = self.current

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
