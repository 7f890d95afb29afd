"""A remover that removes random rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk import hookimpl
from dingsdk.config import PartSection
from dingsdk.errors import CheckpointCorruptError
from dingsdk.plugins import Registry
from dingsdk.worker.replay_buffer import Remover, Where

__all__ = ["PluginNameRemover"]


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
        state = self._rng.bit_generator.state
        # The generator's words have 128 bits, too many for the numbers of a checkpoint.
        words = {key: hex(word) for key, word in state["state"].items()}
        return {**state, "state": words, "by_age": self._by_age.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            by_age = np.array(state["by_age"], np.int64)
            words = {key: int(word, 16) for key, word in state["state"].items()}
            bits = np.random.PCG64(0)
            bits.state = cast(Any, {**state, "state": words})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"no state of this remover: {error}") from error
        is_each_once = np.array_equal(np.sort(by_age), np.arange(len(by_age)))
        if not is_each_once or len(by_age) > self.capacity:
            raise CheckpointCorruptError(f"{by_age} are no positions of {self.capacity}")
        self._rng, self._by_age = np.random.Generator(bits), by_age


@hookimpl
def dingsdk_register_removers(registry: Registry) -> None:
    """Register the remover under its type key."""
    registry.register("plugin_name", PluginNameRemover)
