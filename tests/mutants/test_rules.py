"""Each rule of the kit detects its mutants, and other rules of the same kind do not.

A mutant is a part with one defect. It must break its own rule. Rules that the same defect also
breaks are listed in its ``also``. The rules of transports about network faults have a file of
their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from dingsdk.testing import (
    BUFFER_CAPABILITIES,
    BUFFER_RULES,
    COLLECTOR_RULES,
    COMMANDER_RULES,
    ENV_RULES,
    EVALUATOR_CAPABILITIES,
    EVALUATOR_RULES,
    EXTENSION_RULES,
    PART_RULES,
    POLICY_CAPABILITIES,
    POLICY_RULES,
    RULES,
    ContractError,
    ContractReport,
    Rule,
    RuleBook,
    check_collector,
    check_commander,
    check_env_manager,
    check_env_manager_rule,
    check_evaluator,
    check_extension,
    check_part,
    check_policy,
    check_transport,
)
from dingsdk.testing.buffer_bench import BufferBench

from . import (
    buffer_mutants,
    collector_mutants,
    commander_mutants,
    env_manager_mutants,
    evaluator_mutants,
    extension_mutants,
    part_mutants,
    policy_mutants,
    transport_mutants,
)


class Kind(NamedTuple):
    """The mutants of a kind of part.

    Attributes:
        rules: The rules of the kind.
        mutants: The mutants.
        check: Checks a mutant against all rules.
    """

    rules: Sequence[Rule]
    mutants: Sequence[Any]
    check: Callable[[Any], ContractReport]


def check_buffer_of(made: Any) -> ContractReport:
    """Check only rules on the same topic, which the defect is most likely to break."""
    rules = tuple(rule for rule in BUFFER_RULES if topic_of(rule.number) == topic_of(made.breaks))
    book = RuleBook(rules, BUFFER_CAPABILITIES, BufferBench)
    return book.check(made, capabilities=made.capabilities, patience_s=buffer_mutants.PATIENCE_S)


def topic_of(number: int) -> int:
    """Return the number of the first rule on the same topic."""
    firsts = (1, 11, 21, 29, 31, 39, 41, 46)
    return max(first for first in firsts if first <= number)


def check_policy_of(made: Any) -> ContractReport:
    observation, action = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
    return check_policy(made, observation, action, capabilities=POLICY_CAPABILITIES)


def check_part_of(made: Any) -> ContractReport:
    return check_part(made.kind, made.make, capabilities=made.capabilities, patience_s=2.0)


def check_extension_of(made: Any) -> ContractReport:
    return check_extension(made.kind, made.made(), capabilities=made.declared)


def of_kind(module: Any, kind: str) -> list[Any]:
    return [made for made in module.MUTANTS if made.kind == kind]


KINDS: Mapping[str, Kind] = {
    "buffer": Kind(BUFFER_RULES, buffer_mutants.MUTANTS, check_buffer_of),
    "collector": Kind(
        COLLECTOR_RULES,
        collector_mutants.MUTANTS,
        lambda made: check_collector(made, capabilities=made.capabilities),
    ),
    "commander": Kind(
        COMMANDER_RULES,
        commander_mutants.MUTANTS,
        lambda made: check_commander(made, capabilities=made.declared),
    ),
    "env manager": Kind(
        ENV_RULES,
        env_manager_mutants.MUTANTS,
        lambda made: check_env_manager(made, capabilities=made.declared),
    ),
    "evaluator": Kind(
        EVALUATOR_RULES,
        evaluator_mutants.MUTANTS,
        lambda made: check_evaluator(made, capabilities=EVALUATOR_CAPABILITIES),
    ),
    "policy": Kind(POLICY_RULES, policy_mutants.MUTANTS, check_policy_of),
    "transport": Kind(
        [rule for rule in RULES if not rule.needs],
        transport_mutants.MUTANTS,
        lambda made: check_transport(made, patience_s=transport_mutants.PATIENCE_S),
    ),
    **{
        kind: Kind(book.rules, of_kind(part_mutants, kind), check_part_of)
        for kind, book in PART_RULES.items()
    },
    **{
        kind: Kind(book.rules, of_kind(extension_mutants, kind), check_extension_of)
        for kind, book in EXTENSION_RULES.items()
    },
}
QUICK = "env manager"
"""Its mutants are tested in `make test` too."""


@pytest.fixture(autouse=True)
def _nothing_stays_open_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    while buffer_mutants.LeavesAFile.left:
        os.close(buffer_mutants.LeavesAFile.left.pop())
    sys.modules.pop("tabnanny", None)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        pytest.param(
            kind,
            made,
            id=f"{kind}-{made.breaks:02d}-{made.__name__}",
            marks=[] if kind == QUICK else pytest.mark.slow,
        )
        for kind, found in KINDS.items()
        for made in found.mutants
        if not hasattr(made, "only")
    ],
)
def test_mutant_breaks_its_rule_alone(kind: str, made: Any) -> None:
    """All mutants of a base class can do so only if the base class itself breaks no rule."""
    with pytest.raises(ContractError) as caught:
        KINDS[kind].check(made)

    broken = set(caught.value.broken)
    assert made.breaks in broken, str(caught.value)
    assert broken <= {made.breaks, *made.also}, str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made", [made for made in env_manager_mutants.MUTANTS if hasattr(made, "only")]
)
def test_mutant_in_child_processes_breaks_its_rule(made: Any, tmp_path: Path) -> None:
    (rule,) = (rule for rule in ENV_RULES if rule.number == made.breaks)
    with pytest.raises(AssertionError):
        check_env_manager_rule(rule, made, tmp_path, capabilities=made.declared)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_a_mutant(kind: str) -> None:
    found = KINDS[kind]
    assert {made.breaks for made in found.mutants} == {rule.number for rule in found.rules}
