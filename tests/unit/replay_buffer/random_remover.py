"""A remover with its own config section; its state has keys that buffer states have too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.config import Count, PartSection
from dingsdk.errors import CheckpointCorruptError

from ...contracts import random_remover


class RandomRemover(random_remover.RandomRemover):
    class Config(PartSection, frozen=True, kw_only=True):
        type: str = "random"
        spread: Count = 3

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self.spread = self.read(cfg, "remover").spread

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "version": "mine", "capacity": -1}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = dict(state)
        if (own.pop("version", None), own.pop("capacity", None)) != ("mine", -1):
            raise CheckpointCorruptError(f"no state of this remover: {dict(state)!r:.80}")
        super().load_state_dict(own)
