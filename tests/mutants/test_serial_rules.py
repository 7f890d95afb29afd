"""Each rule of collectors and evaluators detects its mutants, and other rules do not.

A mutant is a collector or an evaluator with one defect. It must break its own rule. Rules that the
same defect also breaks are listed in its ``also``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.testing import (
    COLLECTOR_RULES,
    EVALUATOR_CAPABILITIES,
    EVALUATOR_RULES,
    check_collector,
    check_evaluator,
)

from . import collector_mutants, evaluator_mutants
from .mutant_list import expect_own_rule_broken

pytestmark = pytest.mark.slow


def check(made: Any) -> Any:
    if hasattr(made, "capabilities"):
        return check_collector(made, capabilities=made.capabilities)
    return check_evaluator(made, capabilities=EVALUATOR_CAPABILITIES)


@pytest.mark.parametrize(
    "made",
    [*collector_mutants.MUTANTS, *evaluator_mutants.MUTANTS],
    ids=lambda made: f"{made.breaks:02d}-{made.__name__}",
)
def test_mutant_breaks_its_rule_alone(made: Any) -> None:
    expect_own_rule_broken(made, lambda: check(made))


@pytest.mark.parametrize(
    "made",
    [
        collector_mutants.Samples,
        collector_mutants.Episodes,
        collector_mutants.Games,
        evaluator_mutants.Mutant,
    ],
)
def test_unchanged_part_breaks_no_rule(made: Any) -> None:
    assert check(made).broken == ()


def test_every_rule_has_a_mutant() -> None:
    found = {made.breaks for made in collector_mutants.MUTANTS}
    assert found == {rule.number for rule in COLLECTOR_RULES}
    found = {made.breaks for made in evaluator_mutants.MUTANTS}
    assert found == {rule.number for rule in EVALUATOR_RULES}
