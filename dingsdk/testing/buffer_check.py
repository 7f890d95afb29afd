"""Running the rules of the replay buffers."""

from __future__ import annotations

from collections.abc import Collection

from dingsdk.testing.buffer_bench import BufferBench, MakeBuffer
from dingsdk.testing.buffer_rules import BUFFER_CAPABILITIES, BUFFER_RULES
from dingsdk.testing.rule import PATIENCE_S, ContractReport, RuleBook

BUFFER_BOOK = RuleBook(BUFFER_RULES, BUFFER_CAPABILITIES, BufferBench)

check_buffer_rule = BUFFER_BOOK.check_rule


def check_buffer(
    make: MakeBuffer,
    *,
    capabilities: Collection[str] = (),
    patience_s: float = PATIENCE_S,
) -> ContractReport:
    """Hold a replay buffer, and the parts it is made of, to every rule of the contract.

    Args:
        make: Returns a fresh buffer with the settings that it is given, over those that it is to
            be tested with, e.g. ``lambda cfg: MyBuffer({"storage": {"type": "mine"}, **cfg})``.
            The settings are ``replay_buffer_size`` and ``seed``, and what the capabilities name.
        capabilities: Which of ``BUFFER_CAPABILITIES`` the buffer has; rules that need another
            one do not apply.
        patience_s: How long something that must happen may take.

    Returns:
        The results, where no rule is broken.

    Raises:
        ContractError: some are; ``report`` has all results, ``broken`` the numbers.
        ValueError: an unknown capability.
    """
    return BUFFER_BOOK.check(make, capabilities, patience_s)
