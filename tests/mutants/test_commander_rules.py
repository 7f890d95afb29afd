"""Each rule of the commander contract detects its mutants, and other rules do not.

A mutant is a commander with one defect. It must break its own rule. Rules that the same defect also
breaks are listed in its ``also``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.testing import COMMANDER_RULES, check_commander

from .commander_mutants import MUTANTS, Mutant, Playing
from .mutant_list import expect_own_rule_broken

pytestmark = pytest.mark.slow


def check(made: Any) -> Any:
    return check_commander(
        made,
        capabilities=made.declared,
    )


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    expect_own_rule_broken(made, lambda: check(made))


@pytest.mark.parametrize("made", [Mutant, Playing])
def test_unchanged_commander_breaks_no_rule(made: Any) -> None:
    assert check(made).broken == ()


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in COMMANDER_RULES}
