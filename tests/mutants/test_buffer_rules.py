"""Each rule of the buffer contract detects its mutants, and other rules do not.

A mutant is a buffer with one defect. It must break its own rule. Rules that the same defect also
breaks are listed in its ``also``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dingsdk.testing import BUFFER_RULES, BufferMachine, Rule, RuleBroken, check_buffer_rule

from . import buffer_kind_mutants, buffer_priority_mutants, buffer_use_mutants  # noqa: F401
from .buffer_life_mutants import LeavesAFile
from .buffer_mutant import MUTANTS, PATIENCE_S, Mutant

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    while LeavesAFile.left:
        os.close(LeavesAFile.left.pop())


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant], tmp_path: Path) -> None:
    broken = {rule.number for rule in group_of(made) if is_broken(rule, made, tmp_path)}

    assert made.breaks in broken
    assert broken <= {made.breaks, *made.also}


def group_of(made: type[Mutant]) -> list[Rule]:
    """Return the rules on the same topic, which the defect is most likely to break."""
    return [
        rule
        for rule in BUFFER_RULES
        if matter_of(rule.number) == matter_of(made.breaks)
        and (not rule.needs or rule.needs in made.capabilities)
    ]


def matter_of(number: int) -> int:
    """Return the number of the first rule on the same topic."""
    firsts = (1, 11, 21, 29, 31, 39, 41, 46)
    return max(first for first in firsts if first <= (21 if number == 59 else number))


def is_broken(rule: Rule, made: type[Mutant], folder: Path) -> bool:
    (folder / rule.name).mkdir()
    try:
        check_buffer_rule(
            rule,
            made,
            folder / rule.name,
            capabilities=made.capabilities,
            patience_s=PATIENCE_S,
        )
    except Exception:
        return True
    return False


@pytest.mark.parametrize(
    "made",
    [
        made
        for made in MUTANTS
        if made.__name__
        in {
            "CountsUsedRows",
            "ForgetsTheOrderAtTheSeam",
            "IgnoresPushedPriorities",
            "KeepsStaleRows",
            "KnowsNoStaleness",
            "LeavesWeightsAsTheyAre",
            "SharesItsRows",
        }
    ],
    ids=lambda made: made.__name__,
)
def test_state_machine_detects_mutants(made: type[Mutant]) -> None:
    class Machine(BufferMachine):
        capabilities = made.capabilities - {"saves"}

        def make_buffer(self, cfg: Mapping[str, Any]) -> Any:
            return made(cfg)

    quick = settings(
        max_examples=400,
        stateful_step_count=20,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(Machine, settings=quick)


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in BUFFER_RULES}
