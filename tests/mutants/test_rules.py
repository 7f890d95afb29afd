"""Each rule of the kit detects its mutants, and other rules of the same kind do not.

A mutant is a part with one defect. It must break its own rule. Rules that the same defect also
breaks are listed in its ``also``. The rules of buffers, and those of transports about network
faults, have files of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from dingsdk.testing import (
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
    ContractReport,
    Rule,
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

from . import (
    collector_mutants,
    commander_mutants,
    env_manager_mutants,
    evaluator_mutants,
    extension_mutants,
    part_mutants,
    policy_mutants,
    transport_life_mutants,
    transport_message_mutants,  # noqa: F401 - they register
    transport_mutant,
    transport_store_mutants,  # noqa: F401 - they register
)
from .mutant_list import expect_own_rule_broken


class Kind(NamedTuple):
    """The mutants of a kind of part.

    Attributes:
        rules: The rules of the kind.
        mutants: The mutants.
        unchanged: Their base classes, which have no defect.
        check: Checks a mutant against all rules.
    """

    rules: Sequence[Rule]
    mutants: Sequence[Any]
    unchanged: Sequence[Any]
    check: Callable[[Any], ContractReport]


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
    "collector": Kind(
        COLLECTOR_RULES,
        collector_mutants.MUTANTS,
        [collector_mutants.Samples, collector_mutants.Episodes, collector_mutants.Games],
        lambda made: check_collector(made, capabilities=made.capabilities),
    ),
    "commander": Kind(
        COMMANDER_RULES,
        commander_mutants.MUTANTS,
        [commander_mutants.Mutant, commander_mutants.Playing],
        lambda made: check_commander(made, capabilities=made.declared),
    ),
    "env manager": Kind(
        ENV_RULES,
        env_manager_mutants.MUTANTS,
        [env_manager_mutants.Mutant],
        lambda made: check_env_manager(made, capabilities=made.declared),
    ),
    "evaluator": Kind(
        EVALUATOR_RULES,
        evaluator_mutants.MUTANTS,
        [evaluator_mutants.Mutant],
        lambda made: check_evaluator(made, capabilities=EVALUATOR_CAPABILITIES),
    ),
    "policy": Kind(POLICY_RULES, policy_mutants.MUTANTS, [policy_mutants.Mutant], check_policy_of),
    "transport": Kind(
        [rule for rule in RULES if not rule.needs],
        transport_mutant.MUTANTS,
        [transport_mutant.Mutant],
        lambda made: check_transport(made, patience_s=transport_mutant.PATIENCE_S),
    ),
    **{
        kind: Kind(book.rules, of_kind(part_mutants, kind), [], check_part_of)
        for kind, book in PART_RULES.items()
    },
    **{
        kind: Kind(book.rules, of_kind(extension_mutants, kind), [base], check_extension_of)
        for (kind, book), base in zip(
            EXTENSION_RULES.items(),
            (
                extension_mutants.Hook,
                extension_mutants.Wrapper,
                extension_mutants.Command,
                extension_mutants.Observer,
            ),
            strict=True,
        )
    },
}
QUICK = "env manager"
"""Its mutants are tested in `make test` too."""


def cases(of: Callable[[Kind], Sequence[Any]]) -> list[Any]:
    return [
        pytest.param(
            kind,
            made,
            id=f"{kind}-{getattr(made, 'breaks', 0):02d}-{made.__name__}",
            marks=[] if kind == QUICK else pytest.mark.slow,
        )
        for kind, found in KINDS.items()
        for made in of(found)
        if not hasattr(made, "only")
    ]


@pytest.fixture(autouse=True)
def _nothing_stays_open_or_imported() -> Iterator[None]:
    yield
    sys.modules.pop("tabnanny", None)
    while left := transport_life_mutants.LeavesAFile.left:  # type: ignore[attr-defined]
        left.pop().close()


@pytest.mark.parametrize(("kind", "made"), cases(lambda kind: kind.mutants))
def test_mutant_breaks_its_rule_alone(kind: str, made: Any) -> None:
    expect_own_rule_broken(made, lambda: KINDS[kind].check(made))


@pytest.mark.parametrize(("kind", "made"), cases(lambda kind: kind.unchanged))
def test_unchanged_part_breaks_no_rule(kind: str, made: Any) -> None:
    assert KINDS[kind].check(made).broken == ()


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
