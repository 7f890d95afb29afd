"""Rows drawn alike."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.sampler.contract import RowSampler
from dingsdk.worker.replay_buffer.sampler.uniform_kernels import add_distinct


class UniformSampler(RowSampler):
    """Every row alike, and every set of distinct rows alike (type ``uniform``)."""

    config: ClassVar[dict[str, Any]] = {"type": "uniform"}

    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        if replace or size == 1:
            return self._integers(population, size)
        if 2 * size <= population:
            return self._distinct(population, size)
        # Most rows are wanted: draw those to leave out.
        keep = np.ones(population, dtype=np.bool_)
        if size < population:
            keep[self._distinct(population, population - size)] = False
        return np.flatnonzero(keep).astype(np.int64, copy=False)

    def _distinct(self, population: int, size: int) -> NDArray[np.int64]:
        # Generator.choice(replace=False) works on a permutation of the population, which
        # costs as much as the buffer is large. Drawing on until `size` distinct ranks are found
        # leaves every set equally likely, and the first draw nearly always suffices.
        ranks = np.empty(size, np.int64)
        found = 0
        while found < size:
            found = add_distinct(self._rng.random(size - found), population, ranks, found)
        return ranks

    def _integers(self, population: int, size: int) -> NDArray[np.int64]:
        # Half the time of Generator.integers (3.4 and 7.2 us for 256). Doubles have 53 random
        # bits, so ranks differ in probability by population / 2**53 at most.
        return (self._rng.random(size) * population).astype(np.int64)
