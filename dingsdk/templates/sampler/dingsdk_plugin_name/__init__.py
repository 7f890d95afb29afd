"""A sampler that spreads each batch over the whole buffer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk import hookimpl
from dingsdk.config import PartSection
from dingsdk.plugins import Registry
from dingsdk.worker.replay_buffer import RowSampler

__all__ = ["PluginNameSampler"]


class PluginNameSampler(RowSampler):
    """Draws evenly spaced rows from a random start; every row is equally likely."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``sampler``."""

        type: str = "plugin_name"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"rows"})

    def draw(self, population: int, size: int, replace: bool = False) -> NDArray[np.int64]:
        """Return int64[size]: row numbers from 0 to ``population - 1``."""
        start = self._rng.random()
        drawn: NDArray[Any] = (np.arange(size) + start) * (population / size)
        return drawn.astype(np.int64)


@hookimpl
def dingsdk_register_samplers(registry: Registry) -> None:
    """Register the sampler under its type key."""
    registry.register("plugin_name", PluginNameSampler)
