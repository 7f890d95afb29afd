"""The base classes of the buffer mutants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.worker.replay_buffer import NaiveReplayBuffer

from .mutant_list import MutantList

PATIENCE_S = 2.0
BASE = frozenset({"fifo", "parts", "saves"})


class Mutant:
    """Mixin for a buffer class: the storage and the capabilities that it is tested with."""

    capabilities: ClassVar[frozenset[str]] = BASE
    storage: ClassVar[str] = "array"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({"storage": {"type": self.storage}, **cfg})  # type: ignore[call-arg]


class Naive(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "columns"}


class NaiveObjects(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "objects"}
    storage = "object"


MUTANTS = MutantList()
mutant = MUTANTS.mutant
ORDER = (7, 8, 19, 20, 22, 23, 24, 26, 27, 37, 39)
"""Rules that check the order of rows."""
