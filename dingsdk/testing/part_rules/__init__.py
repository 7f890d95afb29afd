"""The rules of the parts of a replay buffer; each part is checked without a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dingsdk.testing.part_rules.bench import MakePart
from dingsdk.testing.runner import ContractReport, RuleBook, book_of

PART_RULES: Final[Mapping[str, RuleBook[MakePart]]] = {
    kind: book_of(kind) for kind in ("storage", "sampler", "remover", "limiter")
}
"""The rules and the optional capabilities for each kind of part."""


def check_part(kind: str, make: MakePart, **options: Any) -> ContractReport:
    """Check a part of a replay buffer against every rule for its kind, as ``RuleBook.check``.

    Args:
        kind: ``storage``, ``sampler``, ``remover`` or ``limiter``.
        make: ``make(capacity, seed, folder)`` returns a new part. ``folder`` is for its files; a
            durable storage opens the rows that are in it.
        options: ``capabilities``, from ``PART_RULES[kind].known_capabilities``, and ``patience_s``.
    """
    return book_of(kind).check(make, **options)
