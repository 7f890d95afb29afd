"""The rules of the other extensions: learner hooks, env wrappers, commands and observers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dingsdk.testing.extension_rules import commands, learner_hooks, observers, wrappers
from dingsdk.testing.rule import ContractReport, RuleBook, collect

EXTENSION_RULES: Final[Mapping[str, RuleBook[Any]]] = {
    "learner hook": RuleBook(
        collect(learner_hooks),
        {
            "args": "It declares its `ext_args` as the section `Args`.",
            "observes": "Training is the same as without the hook.",
            "repeatable": "What it logs depends only on the training, not on the time.",
        },
        learner_hooks.HookBench,
    ),
    "wrapper": RuleBook(
        collect(wrappers),
        {"repeatable": "The same seed and the same actions give the same episode."},
        wrappers.WrapperBench,
    ),
    "command": RuleBook(collect(commands), {}, commands.CommandBench),
    "observer": RuleBook(collect(observers), {}, observers.ObserverBench),
}
"""The rules and the optional capabilities for each kind of extension."""


def check_extension(kind: str, made: Any, **options: Any) -> ContractReport:
    """Check an extension against every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``learner hook``, ``wrapper``, ``command`` or ``observer``.
        made: For a learner hook ``make(name, priority, *, position, ext_args)``, e.g. the class.
            For a wrapper ``make(wrap)``: it makes a new env, calls ``wrap`` with it, and returns
            the result in the wrapper. For a command the click command. For an observer the module
            or object with the hookimpls.
        options: ``capabilities``, from ``EXTENSION_RULES[kind].known_capabilities``, and
            ``patience_s``.
    """
    return EXTENSION_RULES[kind].check(made, **options)
