"""A remover as a plugin would bring it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Count, PartSection
from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer import Remover


class RandomRemover(Remover):
    """Lets random rows leave a full buffer; its state has keys that the buffer's has too."""

    class Config(PartSection, frozen=True, kw_only=True):
        type: str = "random"
        spread: Count = 3

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self.spread = self.read(cfg, "remover").spread
        self._rng = np.random.default_rng(seed)
        self._order = np.empty(0, np.int64)  # positions, oldest row first

    @property
    def count(self) -> int:
        return len(self._order)

    def allot(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        new = np.arange(self.count, min(self.count + n, self.capacity))
        chosen = self._rng.choice(self.count, n - len(new), replace=False)
        leaving = self._order[np.sort(chosen)]
        where = np.concatenate((new, leaving))
        self._order = np.concatenate((np.delete(self._order, chosen), where))
        return where, leaving if len(leaving) else None

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._order[ranks]

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._order[ages]

    def clear(self) -> None:
        self._order = np.empty(0, np.int64)

    def state_dict(self) -> dict[str, Any]:
        state = {key: str(value) for key, value in self._rng.bit_generator.state["state"].items()}
        return {"version": "mine", "capacity": -1, "order": self._order.copy(), **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != "mine":
            raise CheckpointCorruptError(f"no state of this remover: {dict(state)!r:.80}")
        words = {key: int(state[key]) for key in ("state", "inc")}
        self._rng.bit_generator.state = {**self._rng.bit_generator.state, "state": words}
        self._order = np.array(state["order"])
