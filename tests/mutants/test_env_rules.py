"""Each env manager rule detects its mutants, and other rules do not.

A mutant is an env manager with one defect. It must break its own rule. Rules that the same defect
also breaks are listed in its ``also``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk.testing import ENV_RULES, check_env_manager, check_env_manager_rule

from .env_manager_mutants import FULL, MUTANTS, Mutant
from .mutant_list import expect_own_rule_broken


@pytest.mark.parametrize(
    "made",
    [made for made in MUTANTS if not hasattr(made, "only")],
    ids=lambda made: f"{made.breaks:02d}-{made.__name__}",
)
def test_mutant_breaks_its_rule_alone(made: Any) -> None:
    expect_own_rule_broken(made, lambda: check_env_manager(made, capabilities=made.declared))


@pytest.mark.slow
@pytest.mark.parametrize("made", [made for made in MUTANTS if hasattr(made, "only")])
def test_mutant_in_child_processes_breaks_its_rule(made: Any, tmp_path: Path) -> None:
    rule = ENV_RULES[made.breaks - 1]
    with pytest.raises(AssertionError):
        check_env_manager_rule(rule, made, tmp_path, capabilities=made.declared)


def test_unchanged_manager_breaks_no_rule() -> None:
    assert check_env_manager(Mutant, capabilities=FULL).broken == ()


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in ENV_RULES}
