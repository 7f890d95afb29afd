"""Running the rules of the replay buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dingsdk.testing.buffer_bench import BufferBench
from dingsdk.testing.buffer_rules import BUFFER_CAPABILITIES, BUFFER_RULES
from dingsdk.testing.check import PATIENCE_S, check_all, check_capabilities, run_rule
from dingsdk.testing.report import ContractReport
from dingsdk.testing.rule import Rule
from dingsdk.worker.replay_buffer import IBuffer

MakeBuffer = Callable[[Mapping[str, Any]], IBuffer]


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
    check_capabilities(capabilities, BUFFER_CAPABILITIES)
    return check_all(
        BUFFER_RULES,
        capabilities,
        lambda rule, folder: check_buffer_rule(
            rule, make, folder, capabilities=capabilities, patience_s=patience_s
        ),
    )


def check_buffer_rule(
    rule: Rule,
    make: MakeBuffer,
    folder: Path,
    *,
    capabilities: Collection[str] = (),
    patience_s: float = PATIENCE_S,
) -> None:
    """Hold a buffer to one rule; arguments as ``check_buffer``.

    Args:
        rule: One of ``BUFFER_RULES``.
        make: As above.
        folder: An empty folder for what is saved.
        capabilities: As above.
        patience_s: As above.

    Raises:
        RuleBroken: the rule is broken, or its check did not end.
        Exception: what the buffer raised where it should not.
    """
    run_rule(rule, lambda: BufferBench(make, folder, capabilities, patience_s), patience_s)
