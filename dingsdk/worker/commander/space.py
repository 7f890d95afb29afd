"""A counter of places: how many tasks may run at once."""

from __future__ import annotations


class LimitedSpaceContainer:
    """Counts places in use between two limits. Not thread safe: the caller locks.

    Args:
        min_val: Count at the start, and the least that releases leave.
        max_val: Count at which nothing more is acquired.
    """

    def __init__(self, min_val: int, max_val: int) -> None:
        if min_val < 0 or max_val < min_val:
            raise ValueError(f"need 0 <= min <= max, found min {min_val}, max {max_val}")
        self.min_val = min_val
        self.max_val = max_val
        self.cur = min_val

    def acquire_space(self) -> bool:
        """Take a place; return False where none is free."""
        if self.cur >= self.max_val:
            return False
        self.cur += 1
        return True

    def release_space(self) -> None:
        """Give a place back; never goes below the minimum."""
        self.cur = max(self.min_val, self.cur - 1)

    def increase_space(self) -> None:
        """Allow one place more."""
        self.max_val += 1

    def decrease_space(self) -> None:
        """Allow one place less, never below the minimum; places in use stay in use."""
        self.max_val = max(self.min_val, self.max_val - 1)

    def get_residual_space(self) -> int:
        """Return how many places are free, >= 0."""
        return max(0, self.max_val - self.cur)
