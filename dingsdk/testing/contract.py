"""The rules as pytest tests, one each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

import pytest

from dingsdk.testing.check import PATIENCE_S, check_capabilities, check_rule
from dingsdk.testing.rule import Rule
from dingsdk.testing.rules import RULES
from dingsdk.worker.comm import Transport


class TransportContract:
    """Base class of a transport's contract tests.

    Example:
        >>> class TestMyTransport(TransportContract):
        ...     def make_transport(self, run_dir):
        ...         return MyTransport({}, run_dir)

    Attributes:
        capabilities: Which of ``CAPABILITIES`` the transport has. Rules that need another one
            are no tests.
        patience_s: How long something that must happen may take.
    """

    capabilities: ClassVar[Collection[str]] = frozenset()
    patience_s: ClassVar[float] = PATIENCE_S

    def make_transport(self, run_dir: Path) -> Transport:
        """Return a fresh transport for a run folder. Rules may call it more than once."""
        raise NotImplementedError(f"{type(self).__name__}.make_transport(run_dir) is missing")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if metafunc.function.__name__ == "test_transport":
            check_capabilities(self.capabilities)
            rules = [rule for rule in RULES if not rule.needs or rule.needs in self.capabilities]
            metafunc.parametrize("rule", rules, ids=lambda rule: rule.name)

    def test_transport(self, rule: Rule, tmp_path: Path) -> None:
        check_rule(
            rule,
            self.make_transport,
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )
