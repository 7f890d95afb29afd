"""The rules of the transports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dingsdk.testing.rule import RuleBook, collect
from dingsdk.testing.rules import (
    closing,
    faults,
    incarnations,
    messages,
    payloads,
    policies,
    safety,
)
from dingsdk.testing.transport_bench import Bench

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
"""The optional capabilities of a transport, and what each promises."""

TRANSPORT_BOOK: Final = RuleBook(
    collect(messages, incarnations, closing, payloads, policies, safety, faults),
    CAPABILITIES,
    Bench,
)
RULES: Final = TRANSPORT_BOOK.rules
"""All rules, ordered by number. The number of a removed rule is never used again."""
check_rule = TRANSPORT_BOOK.check_rule
check_transport = TRANSPORT_BOOK.check
"""Check a transport against every rule, as ``RuleBook.check``.

``make(run_dir)`` returns a new transport for a run folder, e.g.
``lambda run_dir: MyTransport({"port": 0}, run_dir)``.
"""
