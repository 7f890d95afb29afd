"""The rules of the other extensions: learner hooks, env wrappers, commands and observers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dingsdk.testing.runner import ContractReport, RuleBook, book_of

EXTENSION_RULES: Final[Mapping[str, RuleBook[Any]]] = {
    kind: book_of(kind) for kind in ("learner hook", "wrapper", "command", "observer")
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
    return book_of(kind).check(made, **options)
