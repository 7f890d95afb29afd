"""What became of the rules."""

from __future__ import annotations

from dataclasses import dataclass

from dingsdk.errors import DingError
from dingsdk.testing.rule import Rule


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule and how it went.

    Attributes:
        rule: The rule.
        applies: Whether the part declares what the rule needs.
        error: What the check raised; None where the rule is kept, or does not apply.
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
    """The results of all rules, in the order of the table. ``str`` of it is for people."""

    results: tuple[RuleResult, ...]

    @property
    def broken(self) -> tuple[int, ...]:
        """Numbers of the rules that were broken."""
        return tuple(result.rule.number for result in self.results if result.error is not None)

    def __str__(self) -> str:
        return "\n".join(str(result) for result in self.results)


class ContractError(DingError, AssertionError):
    """A part that breaks rules of its contract. Facts: ``report``, ``broken`` (numbers)."""
