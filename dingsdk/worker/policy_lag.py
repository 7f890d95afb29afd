"""How old samples were when they were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self


class PolicyLag(NamedTuple):
    """How many policy versions old samples were when they were trained on.

    Attributes:
        mean: Mean lag of all rows that were looked at.
        p99: The lag that 99 % of these rows did not exceed.
        largest: Largest lag of any row.
    """

    mean: float
    p99: int
    largest: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Self | None:
        """Return the lag of rows by their number for each lag; None if there are none."""
        total = sum(counts.values())
        if not total:
            return None
        mean = sum(lag * count for lag, count in counts.items()) / total
        seen, p99 = 0, 0
        for p99 in sorted(counts):
            seen += counts[p99]
            if seen >= 0.99 * total:
                break
        return cls(mean, p99, max(counts))
