"""The table of rules of the transports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from dingsdk.testing.rule import PATIENCE_S, ContractReport, Rule, RuleBook, collect
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
"""What a transport may declare that it can do beyond the contract, and what follows."""

RULES: Final[tuple[Rule, ...]] = collect(
    (messages, incarnations, closing, payloads, policies, safety, faults)
)
"""Every rule, by number. Numbers are never used again for another rule."""

TRANSPORT_BOOK: Final = RuleBook(RULES, CAPABILITIES, Bench)

check_rule = TRANSPORT_BOOK.check_rule


def check_transport(
    make: Callable[[Path], Transport],
    *,
    capabilities: Collection[str] = (),
    patience_s: float = PATIENCE_S,
) -> ContractReport:
    """Hold a transport to every rule of the contract.

    Args:
        make: Returns a fresh transport for the run folder that it is given, e.g.
            ``lambda run_dir: MyTransport({"port": 0}, run_dir)``.
        capabilities: Which of ``CAPABILITIES`` the transport has; rules that need another one
            do not apply.
        patience_s: How long something that must happen may take.

    Returns:
        The results, where no rule is broken.

    Raises:
        ContractError: some are; ``report`` has all results, ``broken`` the numbers.
        ValueError: an unknown capability.
    """
    return TRANSPORT_BOOK.check(make, capabilities, patience_s)
