"""Running rules: each on a bench of its own, within a time limit."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dingsdk.testing.bench import Bench
from dingsdk.testing.report import ContractError, ContractReport, RuleResult
from dingsdk.testing.rule import CAPABILITIES, Rule, RuleBroken
from dingsdk.testing.rules import RULES
from dingsdk.worker.comm import Transport

PATIENCE_S = 5.0
_LIMIT = 12.0
"""How many times the patience a whole rule may take."""
_Make = TypeVar("_Make")


@dataclass(frozen=True, slots=True)
class RuleBook(Generic[_Make]):
    """The rules for parts of one kind, and what it takes to check them.

    Attributes:
        rules: Every rule, by number.
        known_capabilities: What such a part may declare.
        bench: (make, folder, capabilities, patience) -> the bench that a rule is checked on.
    """

    rules: Sequence[Rule]
    known_capabilities: Mapping[str, str]
    bench: Callable[[_Make, Path, Collection[str], float], AbstractContextManager[Any]]

    def check(
        self, make: _Make, capabilities: Collection[str], patience_s: float
    ) -> ContractReport:
        """Check the rules that apply, each with an empty folder, and report on all.

        Raises:
            ContractError: some are broken; ``report`` has all results, ``broken`` the numbers.
            ValueError: an unknown capability.
        """
        check_capabilities(capabilities, self.known_capabilities)
        results = []
        for rule in self.rules:
            error: BaseException | None = None
            applies = not rule.needs or rule.needs in capabilities
            if applies:
                with tempfile.TemporaryDirectory(prefix="dingsdk-rule-") as folder:
                    try:
                        self.check_rule(
                            rule,
                            make,
                            Path(folder),
                            capabilities=capabilities,
                            patience_s=patience_s,
                        )
                    except Exception as found:
                        error = found
            results.append(RuleResult(rule, applies, error))
        report = ContractReport(tuple(results))
        if report.broken:
            raise ContractError(
                f"{len(report.broken)} of {len(results)} rules are broken:\n{report}",
                report=report,
                broken=report.broken,
            )
        return report

    def check_rule(
        self,
        rule: Rule,
        make: _Make,
        folder: Path,
        *,
        capabilities: Collection[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Hold a part to one rule.

        Args:
            rule: One for parts of its kind.
            make: As for all rules, see ``check_transport`` and ``check_buffer``.
            folder: An empty folder for what the part stores.
            capabilities: As for all rules.
            patience_s: How long something that must happen may take.

        Raises:
            RuleBroken: the rule is broken, or its check did not end.
            Exception: what the part raised where it should not.
        """
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with self.bench(make, folder, capabilities, patience_s) as bench:
                    rule.check(bench)
            except BaseException as error:
                errors.append(error)

        # A thread of its own: a part that hangs must not take the check with it.
        thread = threading.Thread(target=run, name=rule.name, daemon=True)
        thread.start()
        limit_s = _LIMIT * patience_s
        thread.join(limit_s)
        if thread.is_alive():
            raise RuleBroken(f"a call hung: the check did not end within {limit_s:.0f} s")
        if errors:
            raise errors[0]


def check_capabilities(capabilities: Collection[str], known: Mapping[str, str]) -> None:
    """Raise ValueError for a capability that does not exist."""
    unknown = sorted(set(capabilities) - known.keys())
    if unknown:
        raise ValueError(f"unknown capabilities {unknown}; known: {sorted(known)}")


_BOOK = RuleBook(RULES, CAPABILITIES, Bench)

check_rule = _BOOK.check_rule


def check_transport(
    make: Callable[[Path], Transport],
    *,
    capabilities: Collection[str] = (),
    patience_s: float = PATIENCE_S,
) -> ContractReport:
    """Hold a transport to every rule of the contract.

    Args:
        make: Returns a fresh transport for the run folder that it is given, e.g.
            ``lambda run_dir: MyTransport({"port": 0}, run_dir)``.
        capabilities: Which of ``CAPABILITIES`` the transport has; rules that need another one
            do not apply.
        patience_s: How long something that must happen may take.

    Returns:
        The results, where no rule is broken.

    Raises:
        ContractError: some are; ``report`` has all results, ``broken`` the numbers.
        ValueError: an unknown capability.
    """
    return _BOOK.check(make, capabilities, patience_s)
