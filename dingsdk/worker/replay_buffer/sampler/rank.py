"""The sampler that draws rows by the rank of their priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.sampler.priority import TreeSampler
from dingsdk.worker.replay_buffer.settings import read_positive


class RankSampler(TreeSampler):
    """Draws rows in proportion to ``(1 / rank) ** alpha`` (type ``rank``).

    The largest priority has rank 1, and how much larger it is does not matter. Sorting all rows
    takes long (0.1 s for a million), so ranks are renewed by the draw before which at least
    ``sort_after * rows`` priorities were assigned. In between rows keep their ranks; a new row is
    drawable at once, with the rank that it would have had then, behind equal and other new rows.

    Config:
        alpha: In [0, 1]; 0 draws all rows alike.
        sort_after: > 0, priorities assigned between two sorts, per row held.

    Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.3. Differences: draws
    follow the ranks exactly, not by segments of about equal probability; between sorts there is
    no heap that is nearly sorted, but the order of the last sort.
    """

    config: ClassVar[dict[str, Any]] = {"type": "rank", "sort_after": 1.0}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._sort_after = read_positive(cfg, "sort_after", self.config, "sampler")
        self._sorted = np.empty(0, np.float64)  # ascending, as of the last sort
        self._new = 0  # rows made drawable since
        self._assigned = 0  # priorities assigned since

    def on_remove(self, where: Where) -> None:
        # What takes the place of a row must not inherit its rank.
        self.withdraw(where)

    def assign(self, where: Where, priorities: NDArray[np.float64] | float) -> None:
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop, dtype=np.int64)
        self._priorities[where] = priorities
        self._largest = max(self._largest, float(np.max(priorities)))
        self._assigned += len(where)
        new = np.unique(where[self._tree.weights[where] == 0.0])
        if len(new):
            ahead = len(self._sorted) - np.searchsorted(self._sorted, self._priorities[new])
            ranks = ahead + self._new + np.arange(1, len(new) + 1)
            self._tree.assign(new, ranks**-self.alpha)
            self._new += len(new)

    def draw(self, size: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        if self._assigned >= self._sort_after * self.drawable > 0:
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
        self._new = self._assigned = 0

    def clear(self) -> None:
        super().clear()
        self._sorted = np.empty(0, np.float64)
        self._new = self._assigned = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "sorted": self._sorted.copy(),
            "new": self._new,
            "assigned": self._assigned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ordered = self._checked(state, "sorted").copy()
        counts = state.get("new"), state.get("assigned")
        if np.any(np.diff(ordered) < 0) or not all(type(n) is int and n >= 0 for n in counts):
            raise CheckpointCorruptError("the sampler's order of priorities is wrong")
        super().load_state_dict(state)
        self._sorted = ordered
        self._new, self._assigned = counts  # type: ignore[assignment]
