"""The rules of the transports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dingsdk.testing.runner import Contract, RuleBook, collect
from dingsdk.testing.transport_rules import closing, faults, safety, stores, workers
from dingsdk.testing.transport_rules.bench import Bench
from dingsdk.worker.comm import Transport

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
    collect(workers, closing, stores, safety, faults), CAPABILITIES, Bench
)
RULES: Final = TRANSPORT_BOOK.rules
"""All rules, ordered by number. The number of a removed rule is never used again."""
check_rule = TRANSPORT_BOOK.check_rule
check_transport = TRANSPORT_BOOK.check
"""Check a transport against every rule, as ``RuleBook.check``.

``make(run_dir)`` returns a new transport for a run folder, e.g.
``lambda run_dir: MyTransport({"port": 0}, run_dir)``.
"""


class TransportContract(Contract):
    """Base class of a transport's contract tests; see ``CAPABILITIES``.

    Example:
        >>> class TestMyTransport(TransportContract):
        ...     def make_transport(self, run_dir):
        ...         return MyTransport({}, run_dir)
    """

    book = TRANSPORT_BOOK
    maker = "make_transport"

    def make_transport(self, run_dir: Path) -> Transport:
        """Return a new transport for a run folder. Rules may call it more than once."""
        raise self._missing("make_transport(run_dir)")
