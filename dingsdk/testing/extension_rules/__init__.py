"""The rules of what extends dingsdk beside a run's parts: learner hooks, wrappers, and so on."""

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
            "observes": "Training goes on as it does without the hook.",
            "repeatable": "What it logs follows from the training alone, not from the time.",
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
"""What checks the extensions of each kind: their rules, and what they may declare beyond these."""


def check_extension(kind: str, made: Any, **options: Any) -> ContractReport:
    """Hold an extension to every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``learner hook``, ``wrapper``, ``command`` or ``observer``.
        made: Of a learner hook ``make(name, priority, *, position, ext_args)``, e.g. the class; of
            a wrapper ``make(wrap)``, which returns a fresh env with ``wrap`` around its innermost
            env and the wrapper around that; of a command the click command; of an observer the
            module or object with the hookimpls.
        options: ``capabilities``, of ``EXTENSION_RULES[kind].known_capabilities``, and
            ``patience_s``.
    """
    return EXTENSION_RULES[kind].check(made, **options)
