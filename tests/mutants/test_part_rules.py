"""Each rule of the buffer parts detects its mutants, and other rules do not."""

from __future__ import annotations

import pytest

from dingsdk.testing import PART_RULES, check_part

from .mutant_list import expect_own_rule_broken
from .part_mutants import MUTANTS, Mutant

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "made", MUTANTS, ids=lambda made: f"{made.kind}-{made.breaks:02d}-{made.__name__}"
)
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    expect_own_rule_broken(
        made,
        lambda: check_part(made.kind, made.make, capabilities=made.capabilities, patience_s=2.0),
    )


@pytest.mark.parametrize("kind", PART_RULES)
def test_every_rule_has_a_mutant(kind: str) -> None:
    broken = {made.breaks for made in MUTANTS if made.kind == kind}
    assert broken == {rule.number for rule in PART_RULES[kind].rules}
