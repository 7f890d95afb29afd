"""Samplers that draw rows by their priority."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import PartSection, Positive, Share
from dingsdk.errors import CheckpointCorruptError, CheckpointVersionError
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler.sum_tree import SumTree, weigh
from dingsdk.worker.replay_buffer.storage import Rows, Where, one_by_one

LEAST_PRIORITY = 1e-5
"""Added to every updated priority; also the minimum of pushed priorities.

A row of priority 0 would never be drawn again. A row of almost 0 would push the importance weights
of all other rows to 0, because weights are relative to the least probable row.
"""
_LEAST_WEIGHT = 1e-280
"""Smallest weight in the sum tree; a normal number even when divided by the largest weight."""


class PrioritySampler(Sampler):
    """Draws rows by weights; subclasses compute the weight of a row from its priority.

    A position is *drawable* while it holds a row. It is drawn in proportion to its *weight*.

    Attributes:
        alpha: Exponent of the priorities.
        max_priority: The largest priority assigned since the last :meth:`clear`, at least 1.0.
            New rows of unknown priority get it, so that each is drawn soon.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``sampler`` of the types that draw by priority.

        Attributes:
            alpha: Exponent of the priorities; 0 draws all rows with equal probability. None uses
                the ``alpha`` of the buffer.
        """

        alpha: Share | None = None

    contract_capabilities: ClassVar[frozenset[str] | None] = frozenset({"priorities"})
    draws_oldest: ClassVar[bool] = False
    """Whether ``draw`` is always given the drawable positions as ``among``, oldest row first."""

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._cfg = self.read(cfg, "sampler")
        self.alpha: float = 0.6 if self._cfg.alpha is None else self._cfg.alpha
        self.max_priority = 1.0
        self._tree = SumTree(capacity)
        self._priorities = np.zeros(capacity, np.float64)

    @abstractmethod
    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        """Set the priorities of positions, and make the positions drawable.

        Args:
            where: Positions; if one is repeated, its last priority is used.
            priorities: float64[n], finite and > 0, or one number for all.
        """

    def on_insert(
        self, where: Where, rows: Rows, priorities: NDArray[np.float64] | None = None
    ) -> None:
        """Assign priorities to new rows; a row without one gets ``max_priority``."""
        if priorities is None:
            self.assign(where, self.max_priority)
        else:
            known = np.where(np.isnan(priorities), self.max_priority, priorities)
            self.assign(where, np.maximum(known, LEAST_PRIORITY))

    def on_restore(self, where: Where, rows: Rows) -> None:
        """Do nothing: the state has the priorities."""

    def on_remove(self, where: Where) -> None:
        """Make positions undrawable; some of them may be undrawable already."""
        self._tree.fill(where, 0.0)

    @property
    def drawable(self) -> int:
        """How many positions can be drawn."""
        return self._tree.live

    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Draw positions, one from each of ``size`` (>= 1) equal shares of the probability.

        Args:
            size: Number of positions to draw.
            among: int64[m], distinct positions to draw from; shares are formed in their order.
                None: all positions.

        Returns:
            int64[size], repeats possible, ascending if ``among`` is ascending or None. Empty if
            no position is drawable.
        """
        if among is None:
            if not self._tree.live:
                return np.empty(0, np.int64)
            return self._tree.draw(self._rng.random(size))
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
        """Return the importance weights of drawable positions: float32[n] in (0, 1].

        ``(N * probability) ** -beta``, with beta in [0, 1], divided by the largest such weight of
        all drawable positions.
        """
        # The least probable position has the largest weight, and N cancels out.
        return self._tree.importance(where, beta)

    def priorities(self, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the last priorities assigned to positions: float64[n]."""
        return self._priorities.take(where)

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {"priority": state["priorities"].take(where)}

    def columns(self) -> dict[str, NDArray[Any]]:
        return {"priorities": self._priorities, "weights": self._tree.weights}

    def clear(self) -> None:
        self._tree.clear()
        self.max_priority = 1.0

    def state_dict(self) -> dict[str, Any]:
        own = {"alpha": self.alpha, "max_priority": self.max_priority}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; change nothing if it is wrong.

        Raises:
            CheckpointVersionError: it was written with another ``alpha``.
            CheckpointCorruptError: it is not a state of this sampler.
        """
        if state.get("alpha") != self.alpha:
            raise CheckpointVersionError(
                f"the sampler's state was written with alpha {state.get('alpha')!r}, this one has "
                f"{self.alpha}; use the same, or load {{'data': state['data']}} to push its rows",
                found=state.get("alpha"),
                expected=self.alpha,
            )
        largest = state.get("max_priority")
        priorities, weights = self._checked(state, "priorities"), self._checked(state, "weights")
        if not (
            type(largest) is float
            and 0 < largest < np.inf
            and len(weights) == len(priorities)
            and np.all(priorities[weights > 0] > 0)
            and np.all(weights <= self._tree.largest_weight)
        ):
            raise CheckpointCorruptError("the priorities and weights of the sampler do not match")
        super().load_state_dict(state)
        self.max_priority = largest
        self._priorities[:] = 0.0
        self._priorities[: len(priorities)] = priorities
        self._tree.replace(weights)

    def _checked(self, state: Mapping[str, Any], key: str) -> NDArray[np.float64]:
        with suppress(KeyError, TypeError, ValueError):
            values = np.asarray(state[key], dtype=np.float64)
            is_short = values.ndim == 1 and len(values) <= self.capacity
            if is_short and np.all(np.isfinite(values) & (values >= 0)):
                return values
        raise CheckpointCorruptError(
            f"the sampler's {key} are wrong; expected at most {self.capacity} finite numbers >= 0"
        )


class OldestSampler(PrioritySampler):
    """Draws the oldest rows, in order of arrival (type ``oldest``); priorities change nothing."""

    class Config(PrioritySampler.Config, frozen=True, kw_only=True):
        """Section ``sampler`` of type ``oldest``."""

        type: str = "oldest"

    # It does not draw by priority as its family does; the rules of the buffer ``queue`` cover it.
    contract_capabilities: ClassVar[None] = None
    draws_oldest: ClassVar[bool] = True

    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        self._priorities[where] = priorities
        self._tree.fill(where, 1.0)

    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if among is None:
            raise NotImplementedError("the type oldest draws among rows that are given by age")
        return among[:size]


class ProportionalSampler(PrioritySampler):
    """Draws rows in proportion to ``priority ** alpha`` (type ``proportional``).

    Source: Schaul et al. 2016, "Prioritized Experience Replay", equation 1, with one draw from
    each of ``size`` equal shares (appendix B.2.1). Difference: weights are clipped, so that their
    sum stays finite (at most about 1e308 / capacity each) and none is 0.
    """

    config: ClassVar[dict[str, Any]] = {"type": "proportional"}

    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        least, most = _LEAST_WEIGHT, self._tree.largest_weight
        if not isinstance(priorities, np.ndarray):
            self._priorities[where] = priorities
            self.max_priority = max(self.max_priority, priorities)
            self._tree.fill(where, min(max(priorities**self.alpha, least), most))
            return
        if isinstance(where, slice):
            where = one_by_one(where)
        weights = np.empty(len(priorities), np.float64)
        largest = weigh(self._priorities, where, priorities, self.alpha, least, most, weights)
        self.max_priority = max(self.max_priority, largest)
        self._tree.assign(where, weights)


class RankSampler(PrioritySampler):
    """Draws rows in proportion to ``(1 / rank) ** alpha`` (type ``rank``).

    The largest priority has rank 1; how much larger it is does not matter. Sorting all rows is
    slow (0.1 s for a million), so a draw sorts them only after ``sort_after * rows`` priorities
    were assigned. Until then rows keep their ranks. A new row is drawable at once: it gets the rank
    that it would have had at the last sort, after rows of equal priority and other new rows.

    Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.3. Differences: draws
    follow the ranks exactly, not segments of about equal probability; between sorts the ranks are
    those of the last sort, not of a heap.
    """

    class Config(PrioritySampler.Config, frozen=True, kw_only=True):
        """Section ``sampler`` of type ``rank``.

        Attributes:
            sort_after: Priorities assigned between two sorts, per row in the buffer.
        """

        type: str = "rank"
        sort_after: Positive = 1.0

    _new = 0  # rows made drawable since the last sort
    _assigned = 0  # priorities assigned since
    _sorted: NDArray[np.float64] = np.empty(0, np.float64)  # ascending, as of then; never changed

    def on_insert(
        self, where: Where, rows: Rows, priorities: NDArray[np.float64] | None = None
    ) -> None:
        # A new row must not inherit the rank of the row that it replaces.
        self.on_remove(where)
        super().on_insert(where, rows, priorities)

    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        where = one_by_one(where)
        self._priorities[where] = priorities
        self.max_priority = max(self.max_priority, float(np.max(priorities)))
        self._assigned += len(where)
        new = np.unique(where[self._tree.weights[where] == 0.0])
        if len(new):
            ahead = len(self._sorted) - np.searchsorted(self._sorted, self._priorities[new])
            ranks = ahead + self._new + np.arange(1, len(new) + 1)
            self._tree.assign(new, ranks**-self.alpha)
            self._new += len(new)

    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if self._assigned >= self._cfg.sort_after * self.drawable > 0:
            self._sort()
        return super().draw(size, among)

    def _sort(self) -> None:
        where = np.flatnonzero(self._tree.weights)
        priorities = self._priorities[where]
        # Stable, so that the order does not depend on how equal rows were sorted before.
        order = np.argsort(-priorities, kind="stable")
        weights = np.zeros(self.capacity, np.float64)
        weights[where[order]] = np.arange(1, len(where) + 1) ** -self.alpha
        self._tree.replace(weights)
        self._sorted = priorities[order[::-1]]
        self._sorted.flags.writeable = False
        self._new = self._assigned = 0
        self.rewrites += 1

    def clear(self) -> None:
        super().clear()
        self._sorted = np.empty(0, np.float64)
        self._new = self._assigned = 0

    def state_dict(self) -> dict[str, Any]:
        counts = {"new": self._new, "assigned": self._assigned}
        return {**super().state_dict(), "sorted": self._sorted, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ordered = self._checked(state, "sorted").copy()
        new, assigned = counts = state.get("new", -1), state.get("assigned", -1)
        if np.any(np.diff(ordered) < 0) or not all(type(n) is int and n >= 0 for n in counts):
            raise CheckpointCorruptError("the sampler's order of priorities is wrong")
        super().load_state_dict(state)
        ordered.flags.writeable = False
        self._sorted, self._new, self._assigned = ordered, new, assigned
