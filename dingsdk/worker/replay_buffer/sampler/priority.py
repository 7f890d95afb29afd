"""Samplers that draw rows by their priority."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler import tree_kernels as kernels
from dingsdk.worker.replay_buffer.sampler.rng_state import load_rng_state, rng_state
from dingsdk.worker.replay_buffer.sampler.sum_tree import SumTree
from dingsdk.worker.replay_buffer.settings import read_bounded

FIRST_PRIORITY = 1.0
"""The largest priority before any was assigned."""
_LEAST_WEIGHT = 1e-280


class PrioritySampler(Sampler):
    """Draws rows, each with the probability that its priority gives it.

    Words: a position is *drawable* from :meth:`assign` until :meth:`withdraw`; its *weight* is
    what its priority counts for, its *probability* the weight over the sum of all weights.

    The buffer assigns whatever it stores, and withdraws what leaves with nothing in its place.
    """

    @property
    @abstractmethod
    def drawable(self) -> int:
        """How many positions can be drawn."""

    @property
    @abstractmethod
    def max_priority(self) -> float:
        """The largest priority assigned since the last :meth:`clear`; 1.0 before any.

        New rows of unknown priority get it, so that each is soon drawn once.
        """

    @abstractmethod
    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        """Make positions drawable, or give those that are another priority.

        Args:
            where: Positions; of equal ones the last counts.
            priorities: float64[n], finite and > 0, or one for all.
        """

    @abstractmethod
    def withdraw(self, where: Where) -> None:
        """Make positions undrawable; those that are already stay so."""

    @abstractmethod
    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Draw positions, one from each of ``size`` equal shares of the probability.

        Args:
            size: >= 1.
            among: int64[m], distinct positions to draw from, in the order in which their shares
                lie; None: all.

        Returns:
            int64[size], repeats possible, ascending if ``among`` is (or is None). Empty where
            there is nothing drawable.
        """

    @abstractmethod
    def importance(self, where: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        """Return the importance weights of drawable positions.

        Args:
            where: int64[n].
            beta: In [0, 1], how much of the bias of the draws they make good for.

        Returns:
            float32[n] in (0, 1]: ``(N * probability) ** -beta`` over the largest that any
            drawable position would have, so all are 1 while the weights are equal.
        """

    @abstractmethod
    def priorities(self, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities last assigned to positions: float64[n]."""


class TreeSampler(PrioritySampler):
    """What samplers share that keep their weights in a sum tree.

    A subclass says in :meth:`_weigh` what priorities weigh.
    """

    config: ClassVar[dict[str, Any]] = {"alpha": 0.6}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self.alpha = read_bounded(cfg, "alpha", TreeSampler.config, 0, 1, "sampler")
        self._tree = SumTree(capacity)
        self._priorities = np.zeros(capacity, np.float64)
        self._largest = FIRST_PRIORITY

    @property
    def drawable(self) -> int:
        return self._tree.live

    @property
    def max_priority(self) -> float:
        return self._largest

    def withdraw(self, where: Where) -> None:
        self._tree.fill(where, 0.0)

    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if among is not None:
            return self._draw_among(size, among)
        if not self._tree.live:
            return np.empty(0, np.int64)
        return self._tree.draw(self._rng.random(size))

    def _draw_among(self, size: int, among: NDArray[np.int64]) -> NDArray[np.int64]:
        weights = self._tree.weights[among]
        drawable = np.flatnonzero(weights)
        if len(drawable) == 0:
            return np.empty(0, np.int64)
        upto = np.cumsum(weights[drawable])
        targets = (np.arange(size) + self._rng.random(size)) * (upto[-1] / size)
        # Rounding may put the last target at the end.
        places = np.searchsorted(upto, targets, side="right").clip(max=len(drawable) - 1)
        drawn: NDArray[np.int64] = among[drawable[places]]
        return drawn

    def importance(self, where: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        # The largest weight is that of the least probability, and N cancels out.
        return self._tree.importance(where, beta)

    def priorities(self, where: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._priorities.take(where)

    def clear(self) -> None:
        self._tree.clear()
        self._largest = FIRST_PRIORITY

    def state_dict(self) -> dict[str, Any]:
        """Return the random state, the priorities and the weights that they had."""
        weights = self._tree.weights
        used = int(np.flatnonzero(weights).max(initial=-1)) + 1
        return {
            **rng_state(self._rng),
            "alpha": self.alpha,
            "max_priority": self._largest,
            "priorities": self._priorities[:used].copy(),
            "weights": weights[:used].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over such a state.

        Raises:
            CheckpointVersionError: it was written with another ``alpha``.
            CheckpointCorruptError: it is none of this sampler's. Nothing changed in either case.
        """
        rng = load_rng_state(state)
        if state.get("alpha") != self.alpha:
            raise CheckpointVersionError(
                f"the sampler's state was written with alpha {state.get('alpha')!r}, this one has "
                f"{self.alpha}; use the same, or load {{'data': state['data']}} to push its rows",
                found=state.get("alpha"),
                expected=self.alpha,
            )
        largest = state.get("max_priority")
        if not (type(largest) is float and 0 < largest < np.inf):
            raise CheckpointCorruptError(f"max_priority is {largest!r}; expected a number > 0")
        priorities = self._checked(state, "priorities")
        weights = self._checked(state, "weights")
        if len(weights) != len(priorities) or np.any(priorities[weights > 0] <= 0):
            raise CheckpointCorruptError("the sampler's priorities and weights do not match")
        if np.any(weights > self._tree.largest_weight):
            raise CheckpointCorruptError("the sampler's weights are too large")
        self._rng = rng
        self._largest = largest
        self._priorities[:] = 0.0
        self._priorities[: len(priorities)] = priorities
        self._tree.replace(weights)

    def _checked(self, state: Mapping[str, Any], key: str) -> NDArray[np.float64]:
        try:
            values = np.asarray(state[key], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"the sampler's {key} are wrong: {error}") from error
        if values.ndim != 1 or len(values) > self.capacity:
            raise CheckpointCorruptError(
                f"the sampler's {key} have shape {list(values.shape)}; expected at most "
                f"{self.capacity} numbers"
            )
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise CheckpointCorruptError(f"the sampler's {key} are not all finite and >= 0")
        return values


class ProportionalSampler(TreeSampler):
    """Draws rows in proportion to ``priority ** alpha`` (type ``proportional``).

    Config:
        alpha: In [0, 1]; 0 draws all rows alike, 1 in proportion to their priorities.

    Source: Schaul et al. 2016, "Prioritized Experience Replay", equation 1, with one draw from
    each of ``size`` equal shares (appendix B.2.1). Difference: weights are kept within bounds
    in which their sum stays finite (about 1e308 over the capacity) and none is 0.
    """

    config: ClassVar[dict[str, Any]] = {"type": "proportional"}

    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        most = self._tree.largest_weight
        if not isinstance(priorities, np.ndarray):
            weight = min(max(priorities**self.alpha, _LEAST_WEIGHT), most)
            self._priorities[where] = priorities
            self._largest = max(self._largest, priorities)
            self._tree.fill(where, weight)
            return
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop, dtype=np.int64)
        weights = np.empty(len(priorities), np.float64)
        largest = kernels.weigh(
            self._priorities, where, priorities, self.alpha, _LEAST_WEIGHT, most, weights
        )
        self._largest = max(self._largest, largest)
        self._tree.assign(where, weights)
