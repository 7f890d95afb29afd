"""What a rule is: a function that holds a part, such as a transport, to one promise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeVar

CAPABILITIES: Final[Mapping[str, str]] = {
    "many_processes": (
        "A second object, made from the same config and run folder as another process would make "
        "it, belongs to the same fabric. Workers then get an object of their own."
    ),
    "survives_faults": (
        "The address is `http://host:port` or `tcp://host:port`, and a bad network may stand "
        "before it. The rules about faults apply."
    ),
}
"""What a transport may declare that it can do beyond the contract, and what follows."""

_NAME = re.compile(r"rule_([0-9]{2})_([a-z0-9_]+)")
_Check = TypeVar("_Check", bound=Callable[[Any], None])


class RuleBroken(AssertionError):  # noqa: N818 - a finding, not an error of the kit
    """A part did not do what the rule says."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One numbered promise of every part of a kind.

    Attributes:
        number: Its place in the table, from 1.
        name: ``rule_NN_...``, for test ids.
        title: The promise in one line.
        text: The promise in full.
        needs: The capability without which the rule does not apply; empty: it always does.
        check: Raises where the part on the bench that it is given breaks the rule.
    """

    number: int
    name: str
    title: str
    text: str
    needs: str
    check: Callable[[Any], None]


def needs(capability: str) -> Callable[[_Check], _Check]:
    """Mark a rule as one for parts that declare ``capability``."""

    def mark(check: _Check) -> _Check:
        check.needs = capability  # type: ignore[attr-defined]
        return check

    return mark


def collect(modules: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """Return the rules of the modules, by number."""
    found: list[Rule] = []
    for module in modules:
        for name, check in vars(module).items():
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            text = inspect.getdoc(check) or ""
            title = text.partition("\n\n")[0].replace("\n", " ").rstrip(".")
            needed = getattr(check, "needs", "")
            found.append(Rule(int(match[1]), name, title, text, needed, check))
    found.sort(key=lambda rule: rule.number)
    return tuple(found)
