"""The plain model that :class:`BufferMachine` compares a replay buffer with."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

TRAJECTORY = 5
"""Rows of a trajectory, by their numbers: the last one of each is its end."""


class BufferModel:
    """A deque of the numbers of the rows that must be in a buffer, and dicts of what is known.

    Args:
        capacity: Of the buffer.
        max_use: Samples after which a row leaves.

    Attributes:
        pushed: Rows pushed since the model was made or cleared.
        window: How many of the newest rows are sampled among.
        priority: Number -> priority, of all rows ever.
        used: Number -> times sampled.
    """

    def __init__(self, capacity: int, max_use: float = math.inf) -> None:
        self.capacity = self.window = capacity
        self.max_use = max_use
        self.pushed = 0
        self.priority: dict[int, float] = {}
        self.used: Counter[int] = Counter()
        # A row that left early leaves a hole, which the ring fills when its turn comes.
        self._ring: deque[int] = deque(maxlen=capacity)
        self._largest = 1.0
        self._next = 0

    def fresh(self, n: int) -> list[int]:
        """Return the next numbers."""
        self._next += n
        return list(range(self._next - n, self._next))

    @property
    def rows(self) -> list[int]:
        """The rows that are there, oldest first."""
        return [number for number in self._ring if self.used[number] < self.max_use]

    @property
    def population(self) -> list[int]:
        """The rows that can be sampled, oldest first."""
        return self.rows[-self.window :]

    def push(self, numbers: list[int]) -> list[int]:
        """Add rows; return those that leave for it, oldest first."""
        everything = [*self.rows, *numbers]
        self._ring.extend(numbers)
        self.pushed += len(numbers)
        self.priority.update(dict.fromkeys(numbers, self._largest))
        return everything[: len(everything) - len(self.rows)]

    def load(self) -> None:
        """Become the model of a new buffer that loaded a save of this one."""
        self.pushed = len(self.rows)

    def reopen(self) -> None:
        """Become the model of a buffer that found the rows of this one on disk.

        Their priorities begin anew, and where it does not matter for leaving, their uses.
        """
        self._largest = 1.0
        if self.max_use == math.inf:
            self.used.clear()
        self.priority.update(dict.fromkeys(self._ring, 1.0))

    def clear(self) -> list[int]:
        """Drop all rows; return them, oldest first."""
        gone = self.rows
        self._ring.clear()
        self.pushed = 0
        self._largest = 1.0
        return gone

    def update(self, priorities: Iterable[tuple[int, float]]) -> None:
        """Set the priorities of those rows that are there."""
        for number, priority in priorities:
            if number in self.rows:
                self.priority[number] = priority
                self._largest = max(self._largest, priority)

    def weights(self, alpha: float, beta: float) -> dict[int, float]:
        """Return the importance weight of each row."""
        mass = {number: self.priority[number] ** alpha for number in self.rows}
        least = min(mass.values())
        return {number: (value / least) ** -beta for number, value in mass.items()}

    def starts(self, length: int) -> list[int]:
        """Return the rows from which ``length`` rows of one trajectory follow."""
        rows = set(self.rows)
        return [
            first
            for first in self.rows
            if first % TRAJECTORY + length <= TRAJECTORY and first + length - 1 in rows
        ]
