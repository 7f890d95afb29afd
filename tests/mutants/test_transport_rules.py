"""Each rule of the transport contract detects its mutants, and other rules do not.

A mutant is the in_memory transport with one defect. It must break its own rule. Rules that the same
defect also breaks are listed in its ``also``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dingsdk.testing import RULES, check_transport

from . import transport_message_mutants, transport_store_mutants  # noqa: F401 - they register
from .mutant_list import expect_own_rule_broken
from .transport_life_mutants import LeavesAFile
from .transport_mutant import MUTANTS, PATIENCE_S, Mutant

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    yield
    sys.modules.pop("tabnanny", None)
    while LeavesAFile.left:  # type: ignore[attr-defined]
        LeavesAFile.left.pop().close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    expect_own_rule_broken(made, lambda: check_transport(made, patience_s=PATIENCE_S))


def test_unchanged_transport_breaks_no_rule() -> None:
    assert check_transport(Mutant, patience_s=PATIENCE_S).broken == ()


def test_every_rule_for_all_transports_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in RULES if not rule.needs}
