"""Each rule of the commander contract notices the commander that breaks it, and no other does.

A mutant is the solo commander with one defect. It must break its own rule; the rules that the same
defect cannot but break as well are named with it.
"""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.testing import COMMANDER_CAPABILITIES, COMMANDER_RULES, check_commander

from .commander_mutants import MUTANTS, Mutant
from .mutant_list import expect_own_rule_broken

pytestmark = pytest.mark.slow


def check(made: Any) -> Any:
    return check_commander(
        made,
        capabilities=COMMANDER_CAPABILITIES,
    )


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    expect_own_rule_broken(made, lambda: check(made))


def test_unchanged_commander_breaks_no_rule() -> None:
    assert check(Mutant).broken == ()


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in COMMANDER_RULES}
