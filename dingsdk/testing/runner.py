"""Runs rules: checks a part, such as a transport, against the rules of its kind.

A rule is a function ``rule_NN_name(bench)`` of the module of its kind; its docstring is the
requirement, and ``@needs`` names the capability of the parts to which it applies. A ``RuleBench``
makes the part that a rule checks. A ``RuleBook`` runs all rules of a kind and returns a report, and
a ``Contract`` is the same as a pytest class with one test for each rule.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from dingsdk.errors import ConfigError, DingError, listing
from dingsdk.plugins import TEMPLATES
from dingsdk.plugins.registry import unknown
from dingsdk.runtime.deadline import returns_within
from dingsdk.testing.expect import Call, RuleBroken

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 5.0
_LIMIT = 12.0
"""The longest time that a rule may take, as a multiple of the patience."""
_NAME = re.compile(r"rule_([0-9]{2})_([a-z0-9_]+)")
_Check = TypeVar("_Check", bound=Callable[[Any], None])
_Make = TypeVar("_Make")
_Made = TypeVar("_Made")


class ContractError(DingError, AssertionError):
    """A part breaks rules of its contract. Facts: ``report``, ``broken`` (numbers of rules)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One numbered requirement for all parts of a kind.

    Attributes:
        number: Its number in the list of rules, from 1.
        name: ``rule_NN_...``, for test ids.
        title: The requirement in one line.
        text: The full requirement.
        needs: The rule applies only to parts with this capability; empty if it always applies.
        unless: The rule does not apply to parts with this capability; empty if there is none.
        check: Called with a bench; raises if the part that the bench makes breaks the rule.
    """

    number: int
    name: str
    title: str
    text: str
    needs: str
    unless: str
    check: Callable[[Any], None]

    def applies_to(self, capabilities: Collection[str]) -> bool:
        """Whether it applies to a part with these capabilities."""
        return (not self.needs or self.needs in capabilities) and self.unless not in capabilities


def needs(capability: str, unless: str = "") -> Callable[[_Check], _Check]:
    """Mark a rule as only for parts that declare ``capability``, and do not declare ``unless``."""

    def mark(check: _Check) -> _Check:
        check.needs, check.unless = capability, unless  # type: ignore[attr-defined]
        return check

    return mark


def collect(module: str, prefix: str = "") -> tuple[Rule, ...]:
    """Return the rules of a module, given by its name, ordered by number.

    With ``prefix``, these are its functions ``<prefix>rule_NN_name``.
    """
    found: list[Rule] = []
    for name, check in vars(sys.modules[module]).items():
        match = _NAME.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match is None:
            continue
        text = inspect.getdoc(check) or ""
        title = text.partition("\n\n")[0].replace("\n", " ").rstrip(".")
        needed, unless = getattr(check, "needs", ""), getattr(check, "unless", "")
        found.append(Rule(int(match[1]), match[0], title, text, needed, unless, check))
    return tuple(sorted(found, key=lambda rule: rule.number))


class RuleBench(Generic[_Make]):
    """Base class of the benches: makes the parts that a rule needs, and closes them at the end.

    If both the rule and a close raise, the error of the rule is raised.

    Args:
        make: Makes the part to check.
        folder: An empty folder.
        capabilities: The capabilities of the part.
        patience_s: How many seconds to wait for something that must happen.

    Attributes:
        exits: An exit stack, closed at the end of the rule.
    """

    def __init__(
        self, make: _Make, folder: Path, capabilities: Collection[str], patience_s: float
    ) -> None:
        self.exits = contextlib.ExitStack()
        self._folders = 0
        self.folder = folder
        self.patience_s = patience_s
        self._make = make
        self._capabilities = frozenset(capabilities)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.exits.close()
        except Exception:
            if error is None:
                raise

    def build(self) -> Any:
        """Make the part once, with few settings, and return it; None if it needs no making."""
        return None

    def keep(self, made: _Made, *limits: float) -> _Made:
        """Return ``made``; its ``close(*limits)``, if any, is called at the end of the rule."""
        if (close := getattr(made, "close", None)) is not None:
            self.exits.callback(self.in_time, partial(close, *limits), "close()")
        return made

    def in_time(self, function: Callable[[], _Made], what: str) -> _Made:
        """Return the result of a call that must end in time, also if it waits for a deadline."""
        return Call(function, what).value(2 * self.patience_s)

    def together(self, *jobs: Callable[[], Any]) -> None:
        """Run calls at the same time, each in a thread.

        Raises the error of a call, or RuleBroken if a call does not end.
        """
        start = threading.Barrier(len(jobs))

        def begin(job: Callable[[], Any]) -> None:
            start.wait(self.patience_s)
            job()

        calls = [Call(partial(begin, job), f"thread {n}") for n, job in enumerate(jobs)]
        for call in calls:
            call.value(4 * self.patience_s)

    def new_folder(self) -> Path:
        """Return the path of a folder in ``folder`` that does not exist yet."""
        self._folders += 1
        return self.folder / f"run{self._folders}"

    def has(self, capability: str) -> bool:
        """Whether the part declares a capability."""
        return capability in self._capabilities


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule.

    Attributes:
        rule: The rule.
        applies: Whether the part declares the capability that the rule needs.
        error: The error that the check raised; None if it passed or the rule does not apply.
    """

    rule: Rule
    applies: bool
    error: BaseException | None

    def __str__(self) -> str:
        state = "-" if not self.applies else "ok" if self.error is None else "BROKEN"
        line = f"{self.rule.number:>2} {state:<6} {self.rule.title}"
        if self.error is None:
            return line
        return f"{line}\n          {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class ContractReport:
    """The results of all rules, ordered by number. ``str`` of it is for people to read."""

    results: tuple[RuleResult, ...]

    @property
    def broken(self) -> tuple[int, ...]:
        """Numbers of the rules that were broken."""
        return tuple(result.rule.number for result in self.results if result.error is not None)

    def __str__(self) -> str:
        return "\n".join(str(result) for result in self.results)


@dataclass(frozen=True, slots=True)
class RuleBook(Generic[_Make]):
    """The rules for parts of one kind, and how to check them.

    Attributes:
        rules: All rules, ordered by number.
        known_capabilities: The capabilities that such a part may declare, with descriptions.
        bench: (make, folder, capabilities, patience) -> the bench that rules are called with.
    """

    rules: tuple[Rule, ...]
    known_capabilities: Mapping[str, str]
    bench: Callable[[_Make, Path, Collection[str], float], RuleBench[_Make]]

    def applying(self, capabilities: Collection[str]) -> list[Rule]:
        """Return the rules for a part with these capabilities; ConfigError for an unknown one."""
        strange = set(capabilities) - self.known_capabilities.keys()
        if strange:
            known = listing(self.known_capabilities)
            raise ConfigError(f"unknown capabilities {listing(strange)}; known: {known}")
        return [rule for rule in self.rules if rule.applies_to(capabilities)]

    def check(
        self, make: _Make, *, capabilities: Collection[str] = (), patience_s: float = PATIENCE_S
    ) -> ContractReport:
        """Check a part against every rule. Each rule gets an empty folder.

        Args:
            make: Makes a new part each time that a rule calls it.
            capabilities: Which of ``known_capabilities`` the part has; rules that need another one
                do not apply.
            patience_s: How many seconds to wait for something that must happen.

        Returns:
            The results, if no rule is broken.

        Raises:
            ContractError: rules are broken; ``report`` has all results, ``broken`` their numbers.
            ConfigError: a capability is unknown.
        """
        applying, results = self.applying(capabilities), []
        check = partial(self.check_rule, capabilities=capabilities, patience_s=patience_s)
        for rule in self.rules:
            error: BaseException | None = None
            if rule in applying:
                with tempfile.TemporaryDirectory(prefix="dingsdk-rule-") as folder:
                    try:
                        check(rule, make, Path(folder))
                    except Exception as found:
                        error = found
            results.append(RuleResult(rule, rule in applying, error))
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
        """Check a part against one rule; the other arguments are those of ``check``.

        Args:
            rule: A rule of this book.
            make: Makes a new part.
            folder: An empty folder for the files of the part.

        Raises:
            RuleBroken: the rule is broken, or its check did not end.
            Exception: an error that the part should not have raised.
        """

        def run() -> None:
            with self.bench(make, folder, capabilities, patience_s) as bench:
                rule.check(bench)

        # In a separate thread, so that a part that hangs does not hang the caller too.
        limit_s = _LIMIT * patience_s
        if not returns_within(limit_s, run):
            raise RuleBroken(f"a call hung: the check did not end within {limit_s:.0f} s")


_BOOKS: Mapping[str, str] = {
    "transport": "transport_rules:TRANSPORT_BOOK",
    "buffer": "buffer_rules:BUFFER_BOOK",
    "storage": "part_rules:STORAGE_BOOK",
    "sampler": "part_rules:SAMPLER_BOOK",
    "remover": "part_rules:REMOVER_BOOK",
    "limiter": "part_rules:LIMITER_BOOK",
    "collector": "collector_rules:COLLECTOR_BOOK",
    "evaluator": "evaluator_rules:EVALUATOR_BOOK",
    "learner hook": "extension_rules:HOOK_BOOK",
    "policy": "policy_rules:POLICY_BOOK",
    "env manager": "env_rules:ENV_BOOK",
    "wrapper": "extension_rules:WRAPPER_BOOK",
    "commander": "commander_rules:COMMANDER_BOOK",
    "command": "extension_rules:COMMAND_BOOK",
    "observer": "extension_rules:OBSERVER_BOOK",
}
"""Kind -> the place of its rules in ``dingsdk.testing``; imported when they are needed."""


def book_of(kind: str) -> RuleBook[Any]:
    """Return the rules for a kind; ``sampler`` and ``samplers``, as in ``KINDS``, are the same.

    Raises:
        UnknownPluginError: there are no rules for such a kind.
    """
    groups = {template.group: name.replace("-", " ") for name, template in TEMPLATES.items()}
    name = groups.get(kind, kind)
    if name not in _BOOKS:
        raise unknown("kinds that have rules", kind, sorted(_BOOKS))
    book: RuleBook[Any] = resolve_name(f"dingsdk.testing.{_BOOKS[name]}")
    return book


class Contract:
    """Base class of the contract classes for pytest: has a test that runs once for each rule.

    Attributes:
        book: The rules.
        maker: What a subclass defines to make the part: an attribute, or a method with its
            arguments, which rules may call more than once.
        capabilities: The capabilities of the part. Rules that need another one are not run.
        patience_s: How many seconds to wait for something that must happen.
    """

    book: ClassVar[RuleBook[Any]]
    maker: ClassVar[str]
    capabilities: ClassVar[Collection[str]] = frozenset()
    patience_s: ClassVar[float] = PATIENCE_S

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "rule" in metafunc.fixturenames:
            rules = self.book.applying(self.capabilities)
            metafunc.parametrize("rule", rules, ids=lambda rule: rule.name)

    def test_rule(self, rule: Rule, tmp_path: Path) -> None:
        self.book.check_rule(
            rule,
            self._part(),
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )

    def _part(self) -> Any:
        """Return the function with which the rules make the part."""
        name = self.maker.partition("(")[0]
        if not hasattr(self, name):
            raise NotImplementedError(f"{type(self).__name__}.{self.maker} is missing")
        return getattr(self, name)
