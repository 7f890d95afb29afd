"""A list of mutants with the rules that each one breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made", bound=type)


class MutantList(list[Any]):
    """The mutants of one kind of part, in definition order."""

    def mutant(self, breaks: int, *also: int) -> Callable[[_Made], _Made]:
        """Register a mutant: the rule that it breaks, and others that its defect also breaks."""

        def mark(made: Any) -> Any:
            made.breaks, made.also = breaks, frozenset(also)
            self.append(made)
            return made

        return mark
