"""A list of mutants with the rules that each one breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from dingsdk.testing import ContractError

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


def expect_own_rule_broken(made: Any, check: Callable[[], Any]) -> None:
    """Assert that the check finds the mutant's rule broken, and no rule except it and `also`."""
    with pytest.raises(ContractError) as caught:
        check()

    broken = set(caught.value.broken)
    assert made.breaks in broken, str(caught.value)
    assert broken <= {made.breaks, *made.also}, str(caught.value)
