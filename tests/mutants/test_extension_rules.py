"""Each rule of hooks, wrappers, commands and observers detects its mutants; other rules do not.

A mutant has one defect. It must break its own rule. Rules that the same defect also breaks are
listed in its ``also``.
"""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.testing import EXTENSION_RULES, ContractReport, check_extension

from .extension_mutants import MUTANTS, Command, Hook, Observer, Wrapper
from .mutant_list import expect_own_rule_broken

pytestmark = pytest.mark.slow


def check(made: Any) -> ContractReport:
    return check_extension(made.kind, made.made(), capabilities=made.declared)


@pytest.mark.parametrize(
    "made", MUTANTS, ids=lambda made: f"{made.kind}-{made.breaks:02d}-{made.__name__}"
)
def test_mutant_breaks_its_rule_alone(made: Any) -> None:
    expect_own_rule_broken(made, lambda: check(made))


@pytest.mark.parametrize("made", [Hook, Wrapper, Command, Observer])
def test_unchanged_extension_breaks_no_rule(made: Any) -> None:
    assert check(made).broken == ()


@pytest.mark.parametrize("kind", EXTENSION_RULES)
def test_every_rule_has_a_mutant(kind: str) -> None:
    broken = {made.breaks for made in MUTANTS if made.kind == kind}
    assert broken == {rule.number for rule in EXTENSION_RULES[kind].rules}
