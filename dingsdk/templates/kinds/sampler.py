"""A sampler that spreads each batch over the whole buffer.

There are three families: a `RowSampler` draws single rows with equal probability, a `PrioritySampler` draws
single rows by priority, and a `SequenceSampler` draws runs of consecutive rows. Each kind of buffer needs
one of them. Use `self._rng` as the only source of random numbers: it is seeded by the buffer, and saved and
loaded with its state. If a sampler has more state, override `state_dict` and `load_state_dict`. If it needs
the rows, override `on_insert`, `on_remove` and `clear`, and name the columns that it reads in
`needs_columns`.

    policy:
      other:
        replay_buffer:
          sampler:
            type: plugin_name
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from dingsdk.config import PartSection
from dingsdk.worker.replay_buffer import RowSampler
from numpy.typing import NDArray


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
