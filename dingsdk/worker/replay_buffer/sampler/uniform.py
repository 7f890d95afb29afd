"""Uniform draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.sampler import RowSampler

COMPILED_FROM = 100_000
"""From this capacity on, compiled code is used. It saves 12 us of 45 for a batch of 256, because
numpy's code drops out of the CPU cache during each gather. Importing the compiler takes 0.8 s and
100 MB, too much for the short runs that use small buffers."""


class UniformSampler(RowSampler):
    """Draws all rows, and all sets of distinct rows, with equal probability (type ``uniform``)."""

    config: ClassVar[dict[str, Any]] = {"type": "uniform"}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._add_distinct = _add_distinct
        if capacity >= COMPILED_FROM:
            from dingsdk.worker.replay_buffer import kernels

            self._add_distinct = kernels.add_distinct

    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        if replace or size == 1:
            # Takes half the time of Generator.integers (3.4 and 7.2 us for 256). Doubles have 53
            # random bits, so ranks differ in probability by at most population / 2**53.
            return (self._rng.random(size) * population).astype(np.int64)
        if 2 * size <= population:
            return self._distinct(population, size)
        # For large samples, draw the complement.
        keep = np.ones(population, dtype=np.bool_)
        if size < population:
            keep[self._distinct(population, population - size)] = False
        return np.flatnonzero(keep).astype(np.int64, copy=False)

    def _distinct(self, population: int, size: int) -> NDArray[np.int64]:
        # Generator.choice(replace=False) permutes the whole population, which is slow for a large
        # buffer. Drawing until `size` distinct ranks are found makes every set equally likely,
        # and the first draw is nearly always enough.
        ranks = np.empty(size, np.int64)
        found = 0
        while found < size:
            found = self._add_distinct(self._rng.random(size - found), population, ranks, found)
        return ranks


def _add_distinct(
    uniforms: NDArray[np.float64], population: int, ranks: NDArray[np.int64], found: int
) -> int:
    """Convert draws in [0, 1) to ranks, and add those not among the first ``found`` in ``ranks``.

    Returns the new number of ranks; they are in the order of the draws.
    """
    drawn = (uniforms * population).astype(np.int64)
    if found:
        drawn = np.concatenate((ranks[:found], drawn))
    ordered = drawn.copy()
    ordered.sort()
    if np.count_nonzero(ordered[1:] == ordered[:-1]):
        drawn = np.fromiter(dict.fromkeys(drawn.tolist()), np.int64)
    ranks[: len(drawn)] = drawn
    return len(drawn)
