"""A sum tree: weights of leaves, drawn in proportion to them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler import tree_kernels as kernels

_CACHE_LINE = 64


class SumTree:
    """Non-negative weights at leaves ``0..size-1``; an inner node holds the sum of its children.

    Nodes have eight children, side by side in one cache line, and a second array holds the
    least weight above 0 below each inner node. A change recomputes the nodes above it from
    their children, so sums carry no drift however many changes there were.

    Not safe for concurrent use; the calls run without the interpreter lock.

    Args:
        size: Number of leaves, >= 1; any number.

    Attributes:
        largest_weight: What a leaf may weigh so that the sum of all stays finite.
    """

    def __init__(self, size: int) -> None:
        widths = [size]
        while widths[-1] > 1 or len(widths) == 1:
            widths.append(-(-widths[-1] // kernels.FANOUT))
        # The levels from the root to the leaves, each filled up to whole nodes with zeros.
        whole = [-(-width // kernels.FANOUT) * kernels.FANOUT for width in reversed(widths)]
        self.size = size
        self.largest_weight = float(np.finfo(np.float64).max) / 2 / size
        self._starts = np.cumsum([0, *whole], dtype=np.int64)
        self._first = int(self._starts[-2])
        self._sums = _aligned(int(self._starts[-1]), 0.0)
        self._lows = _aligned(self._first, math.inf)
        self._nodes = np.empty(0, np.int64)
        self._rest = np.empty(0, np.float64)
        self._live = 0

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[0])

    @property
    def lowest(self) -> float:
        """The least weight above 0; infinity where there is none."""
        return float(self._lows[0])

    @property
    def live(self) -> int:
        """How many leaves have a weight above 0."""
        return self._live

    @property
    def weights(self) -> NDArray[np.float64]:
        """float64[size], a read-only view of the leaves."""
        view = self._sums[self._first : self._first + self.size]
        view.flags.writeable = False
        return view

    def assign(self, where: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Set leaves.

        Args:
            where: int64[n], each in ``0..size-1``; of equal ones the last counts.
            weights: float64[n], >= 0 and at most ``largest_weight``.
        """
        n = len(where)
        if n > len(self._nodes):
            self._nodes = np.empty(n, np.int64)
        self._live += kernels.assign(
            self._sums, self._lows, self._starts, where, weights, self._nodes
        )

    def fill(self, where: Where, weight: float) -> None:
        """Set leaves to one weight."""
        if isinstance(where, slice):
            self._live += kernels.fill(
                self._sums, self._lows, self._starts, where.start, where.stop, weight
            )
        else:
            self.assign(where, np.full(len(where), weight))

    def replace(self, weights: NDArray[np.float64]) -> None:
        """Set the first leaves to these weights and all others to 0."""
        self._sums[self._first :] = 0.0
        self._sums[self._first : self._first + len(weights)] = weights
        kernels.fill(self._sums, self._lows, self._starts, 0, self.size, -1.0)
        self._live = int(np.count_nonzero(weights))

    def clear(self) -> None:
        """Set all leaves to 0."""
        self._sums.fill(0.0)
        self._lows.fill(math.inf)
        self._live = 0

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw leaves by their weights, one from each of ``n`` equal shares of the total.

        Args:
            uniforms: float64[n] in [0, 1).

        Returns:
            int64[n], ascending, repeats possible; never a leaf of weight 0. The total must be
            above 0.
        """
        n = len(uniforms)
        if n > len(self._rest):
            self._rest = np.empty(n, np.float64)
        where = np.empty(n, np.int64)
        kernels.draw(self._sums, self._starts, uniforms, where, self._rest)
        return where

    def importance(self, where: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        """Return ``(lowest / weight) ** beta`` of leaves with weights above 0: float32[n]."""
        weights = np.empty(len(where), np.float32)
        kernels.importance(self._sums, self._first, where, self.lowest, beta, weights)
        return weights


def _aligned(size: int, value: float) -> NDArray[np.float64]:
    """Return float64[size] that begins at a cache line, so that a node lies in one."""
    spare = _CACHE_LINE // 8
    memory = np.full(size + spare, value)
    skip = -memory.ctypes.data % _CACHE_LINE // 8
    return memory[skip : skip + size]
