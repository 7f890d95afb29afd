"""Each rule of the policy contract detects its mutants, and other rules do not.

A mutant is DQN with one defect. It must break its own rule. Rules that the same defect also breaks
are listed in its ``also``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dingsdk.testing import POLICY_CAPABILITIES, POLICY_RULES, check_policy

from .mutant_list import expect_own_rule_broken
from .policy_mutants import MUTANTS, Mutant

pytestmark = pytest.mark.slow


def check(made: Any) -> Any:
    return check_policy(
        made,
        spaces.Box(-1, 1, (4,), np.float32),
        spaces.Discrete(3),
        capabilities=POLICY_CAPABILITIES,
    )


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    expect_own_rule_broken(made, lambda: check(made))


def test_unchanged_policy_breaks_no_rule() -> None:
    assert check(Mutant).broken == ()


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in POLICY_RULES}
