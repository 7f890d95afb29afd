"""Mutants of one kind of part, and the rules that each must break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from dingsdk.testing import ContractError

_Made = TypeVar("_Made", bound=type)


class MutantList(list[Any]):
    """The mutants of a kind of part, in the order of their definition."""

    def mutant(self, breaks: int, *also: int) -> Callable[[_Made], _Made]:
        """Say which rule a mutant breaks, and which others its defect cannot but break as well."""

        def mark(made: Any) -> Any:
            made.breaks, made.also = breaks, frozenset(also)
            self.append(made)
            return made

        return mark


def expect_own_rule_broken(made: Any, check: Callable[[], Any]) -> None:
    """Expect that a check finds the mutant's own rule broken, and none but those named with it."""
    with pytest.raises(ContractError) as caught:
        check()

    broken = set(caught.value.broken)
    assert made.breaks in broken, str(caught.value)
    assert broken <= {made.breaks, *made.also}, str(caught.value)
