"""Each rule of the buffer contract notices the buffer that breaks it, and no other does.

A mutant is a buffer with one defect. It must break its own rule; the rules that the same defect
cannot but break as well are named with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.testing import BUFFER_RULES, ContractError, check_buffer

from . import buffer_kind_mutants, buffer_use_mutants  # noqa: F401 - they register
from .buffer_life_mutants import LeavesAFile
from .buffer_mutant import MUTANTS, PATIENCE_S, Mutant


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    while LeavesAFile.left:
        os.close(LeavesAFile.left.pop())


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    with pytest.raises(ContractError) as caught:
        check_buffer(made, capabilities=made.capabilities, patience_s=PATIENCE_S)

    broken = set(caught.value.broken)
    assert made.breaks in broken
    assert broken <= {made.breaks, *made.also}, str(caught.value)


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in BUFFER_RULES}
