"""The buffers that mutants are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from dingsdk.worker.replay_buffer import NaiveReplayBuffer

PATIENCE_S = 0.5
BASE = frozenset({"fifo", "parts", "saves"})


class Mutant:
    """Stands before the class of a buffer, and says what it is to be tested with."""

    breaks: ClassVar[int] = 0
    also: ClassVar[frozenset[int]] = frozenset()
    capabilities: ClassVar[frozenset[str]] = BASE
    storage: ClassVar[str] = "array"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({"storage": {"type": self.storage}, **cfg})  # type: ignore[call-arg]


class Naive(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "columns"}


class NaiveObjects(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "objects"}
    storage = "object"


MUTANTS: list[type[Mutant]] = []
ORDER = (3, 7, 8, 19, 20, 22, 23, 24, 26, 27, 37, 39, 40)
"""Rules that look at the order of rows."""
_Made = TypeVar("_Made", bound=type[Mutant])


def mutant(breaks: int, *also: int) -> Callable[[_Made], _Made]:
    """Say which rule a mutant breaks, and which others its defect cannot but break as well."""

    def mark(made: _Made) -> _Made:
        made.breaks, made.also = breaks, frozenset(also)
        MUTANTS.append(made)
        return made

    return mark
