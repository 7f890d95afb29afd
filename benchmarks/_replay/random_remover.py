"""A remover that removes random rows, as a plugin could provide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer import Remover, Where


class RandomRemover(Remover):
    """Stores the number of each row; sorts by it only when needed, because sorting is slow."""

    config: ClassVar[dict[str, Any]] = {"type": "random"}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._rng = np.random.default_rng(seed)
        self._numbers = np.zeros(capacity, np.int64)
        self._count = self._pushed = self._newest = 0

    @property
    def count(self) -> int:
        return self._count

    def allot(self, n: int) -> tuple[Where, Where | None]:
        free = np.arange(self._count, min(self._count + n, self.capacity))
        chosen = np.empty(0, np.int64)
        while len(chosen) < n - len(free):
            drawn = self._rng.integers(0, self._count, n - len(free) - len(chosen))
            chosen = np.unique(np.concatenate([chosen, drawn]))
        leaving = chosen[np.argsort(self._numbers[chosen])]
        where = np.concatenate([free, leaving])
        self._numbers[where] = np.arange(self._pushed, self._pushed + n)
        self._newest = int(where[-1])
        self._pushed += n
        self._count += len(free)
        return where, leaving if len(leaving) else None

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return ranks

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        if ages.tolist() == [self._count - 1]:
            return np.array([self._newest])
        return np.argsort(self._numbers[: self._count]).take(ages)

    def clear(self) -> None:
        self._count = self._pushed = self._newest = 0

    def state_dict(self) -> dict[str, Any]:
        numbers = self._numbers[: self._count].copy()
        return {"numbers": numbers, "pushed": self._pushed, "newest": self._newest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count = len(state["numbers"])
        self._numbers[: self._count] = state["numbers"]
        self._pushed, self._newest = state["pushed"], state["newest"]
