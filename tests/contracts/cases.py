"""Parts that are checked against each rule of their kind, as tests of pytest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dingsdk.testing import Rule
from dingsdk.testing.runner import PATIENCE_S, Contract


class Case(NamedTuple):
    """A part, its capabilities, and how a subclass of ``contract`` would make it.

    Attributes:
        made_in: Called with an empty folder; returns what the rules of the kind are given.
        also: Further attributes of the subclass.
    """

    contract: type[Contract]
    made_in: Callable[[Path], Any]
    capabilities: Collection[str] = ()
    is_slow: bool = False
    patience_s: float = PATIENCE_S
    also: Mapping[str, Any] = {}

    def check(self, rule: Rule, folder: Path, parts: Path) -> None:
        maker = self.contract.maker.partition("(")[0]
        attributes = {
            maker: staticmethod(self.made_in(parts)),
            "capabilities": self.capabilities,
            "patience_s": self.patience_s,
            **self.also,
        }
        type("Made", (self.contract,), attributes)().test_rule(rule, folder)


def is_repeated(name: str, rule: Rule) -> bool:
    return "_buffer_with_it_" in rule.name and name != "fifo"


def each_rule(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    """Return the mark of a test that is called with each case and each rule that applies to it.

    Rules that check a whole buffer with a part are slow, except for one part: the buffers with
    these parts have cases of their own.
    """
    found = [
        (name, case, rule)
        for name, case in cases.items()
        for rule in case.contract.book.applying(case.capabilities)
    ]
    return pytest.mark.parametrize(
        ("case", "rule"),
        [
            pytest.param(
                *(case, rule),
                id=f"{name}-{rule.name}",
                marks=[pytest.mark.slow] * (case.is_slow or is_repeated(name, rule)),
            )
            for name, case, rule in found
        ],
    )
