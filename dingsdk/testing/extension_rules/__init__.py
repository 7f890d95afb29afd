"""The rules of the other extensions: learner hooks, env wrappers, commands and observers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from dingsdk.envs.make import EnvFn
from dingsdk.testing.extension_rules import commands, learner_hooks, observers, wrappers
from dingsdk.testing.runner import Contract, ContractReport, RuleBook, book_of, collect
from dingsdk.worker.learner.hooks import LearnerHook

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
    return book_of(EXTENSION_RULES, kind).check(made, **options)


class LearnerHookContract(Contract):
    """Contract tests of a learner hook; see ``EXTENSION_RULES``."""

    book = EXTENSION_RULES["learner hook"]
    maker = "make_hook"

    def make_hook(
        self, name: str, priority: float, *, position: str, ext_args: Mapping[str, Any]
    ) -> LearnerHook:
        """Return a new hook. Add the arguments that it requires to ``ext_args``."""
        raise self._missing("make_hook(...)")


class EnvWrapperContract(Contract):
    """Base class of the contract tests of an env wrapper.

    See ``EXTENSION_RULES["wrapper"].known_capabilities``.

    Attributes:
        env_id: gymnasium id of an env that the wrapper can wrap.
    """

    book = EXTENSION_RULES["wrapper"]
    env_id: ClassVar[str] = "CartPole-v1"

    def make_wrapper(self, env: Any) -> Any:
        """Return the wrapper around an env. Rules may call it more than once."""
        raise self._missing("make_wrapper(env)")

    def _part(self) -> Any:
        env_fn = EnvFn({"env_id": self.env_id})
        return lambda wrap: self.make_wrapper(wrap(env_fn()))


class CommandContract(Contract):
    """Base class of a command's contract tests.

    Attributes:
        command: The click command.
    """

    book = EXTENSION_RULES["command"]
    maker = "command"
    command: ClassVar[Any]


class ObserverContract(Contract):
    """Base class of the contract tests of a plugin that only observes.

    Attributes:
        plugin: The module or object that has the hookimpls.
    """

    book = EXTENSION_RULES["observer"]
    maker = "plugin"
    plugin: ClassVar[Any]
