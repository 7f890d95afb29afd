"""A remover that removes random rows of a full buffer.

`allot` returns the positions of new rows, and the positions of the rows that leave. `positions` and `by_age`
map ranks and ages to positions. `state_dict` contains everything that later removals depend on, and
`load_state_dict` refuses an impossible state without changing anything. Sequences, and storages whose rows
share content, need rows to leave in order, the oldest first: if your remover does that, set `is_fifo`.

    policy:
      other:
        replay_buffer:
          remover:
            type: plugin_name
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from dingsdk.config import PartSection
from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer import Remover, Where
from numpy.typing import NDArray


class PluginNameRemover(Remover):
    """Removes random rows of a full buffer; the seed decides which."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``remover``."""

        type: str = "plugin_name"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"random"})

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._rng = np.random.default_rng(seed)
        self._by_age = np.zeros(0, np.int64)

    @property
    def count(self) -> int:
        return len(self._by_age)

    def allot(self, n: int) -> tuple[Where, Where | None]:
        free = np.arange(self.count, min(self.count + n, self.capacity), dtype=np.int64)
        chosen = self._rng.permutation(self.count)[: n - len(free)]
        # Ordered by age, the oldest first.
        leaving = self._by_age[np.sort(chosen)]
        where = np.concatenate([free, leaving])
        self._by_age = np.concatenate([np.delete(self._by_age, chosen), where])
        return where, leaving if len(leaving) else None

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return ranks

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._by_age[ages]

    def clear(self) -> None:
        self._by_age = np.zeros(0, np.int64)

    def state_dict(self) -> dict[str, Any]:
        return {"by_age": self._by_age.copy(), "random": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            by_age, bits = np.array(state["by_age"], np.int64), np.random.PCG64()
            bits.state = cast(Any, state["random"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"no state of this remover: {error}") from error
        if len(by_age) > self.capacity or not np.array_equal(np.sort(by_age), np.arange(len(by_age))):
            raise CheckpointCorruptError(f"{by_age} are no positions of {self.capacity}")
        self._rng, self._by_age = np.random.Generator(bits), by_age
