"""How old samples were when they were trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

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
    """Counts the lag of the rows of the first batch, and then of every ``every``-th.

    Args:
        versions: Train iterations from one version of the acting policy to the next, or the train
            iteration of each version, ascending; the caller appends new ones.
    """

    def __init__(self, versions: int | list[int], every: int = LAG_EVERY) -> None:
        self._versions = versions
        self._every = every
        self._batches = 0
        self._rows = Counter[int]()  # by their lag

    def count(self, batch: Any, train_iter: int) -> None:
        """Count the rows of a batch, of any form, that is trained on in this iteration."""
        self._batches += 1
        if (self._batches - 1) % self._every or (versions := versions_of(batch)) is None:
            return
        newest, numbers = self._numbers(np.array(train_iter)), self._numbers(versions)
        lags = np.maximum(newest - numbers[versions != NO_VERSION], 0)
        self._rows.update(dict(counted(lags)))

    def _numbers(self, iters: NDArray[np.int64]) -> NDArray[np.int64]:
        if isinstance(self._versions, int):
            return iters // self._versions
        return np.searchsorted(self._versions, iters, side="right")

    @property
    def lag(self) -> PolicyLag | None:
        """The lag of the rows that were counted; None if their versions are not known."""
        return PolicyLag.of(self._rows)
