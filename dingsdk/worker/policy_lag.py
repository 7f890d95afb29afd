"""How old samples were when they were trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from dingsdk.data.collected import NO_VERSION, counted, versions_of

LAG_EVERY = 16
"""Batches from one count of lags to the next, as counting takes longer than drawing."""


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
        lags = sorted(counts)
        seen = np.cumsum([counts[lag] for lag in lags])
        mean = sum(lag * count for lag, count in counts.items()) / total
        return cls(mean, lags[int(np.searchsorted(seen, 0.99 * total))], lags[-1])


class LagCounter:
    """Counts the lag of the rows of the first batch, and then of every ``LAG_EVERY``-th.

    Args:
        version_iters: Train iterations from one version of the acting policy to the next.
    """

    def __init__(self, version_iters: int) -> None:
        self._version_iters = version_iters
        self._batches = 0
        self._rows = Counter[int]()  # by their lag

    def count(self, batch: Any, train_iter: int) -> None:
        """Count the rows of a batch, of any form, that is trained on in this iteration."""
        self._batches += 1
        if self._batches % LAG_EVERY != 1 or (versions := versions_of(batch)) is None:
            return
        newest = train_iter // self._version_iters * self._version_iters
        versions = versions[versions != NO_VERSION]
        lags = np.maximum(newest - versions, 0) // self._version_iters
        self._rows.update(dict(counted(lags)))

    @property
    def lag(self) -> PolicyLag | None:
        """The lag of the rows that were counted; None if their versions are not known."""
        return PolicyLag.of(self._rows)
