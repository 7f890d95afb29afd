"""The rules as pytest tests, one each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dingsdk.policy.base import Policy
from dingsdk.testing.buffer_check import check_buffer_rule
from dingsdk.testing.buffer_rules import BUFFER_CAPABILITIES, BUFFER_RULES
from dingsdk.testing.check import PATIENCE_S, check_capabilities, check_rule
from dingsdk.testing.policy_rules import (
    POLICY_CAPABILITIES,
    POLICY_RULES,
    PolicyUnderTest,
    check_policy_rule,
)
from dingsdk.testing.rule import CAPABILITIES, Rule
from dingsdk.testing.rules import RULES
from dingsdk.worker.comm import Transport
from dingsdk.worker.replay_buffer import IBuffer


class Contract:
    """What the contract classes share: a test that takes a ``rule`` runs once for each.

    Attributes:
        capabilities: What the part declares. Rules that need something else are no tests.
        patience_s: How long something that must happen may take.
    """

    rules: ClassVar[tuple[Rule, ...]]
    known_capabilities: ClassVar[Mapping[str, str]]
    capabilities: ClassVar[Collection[str]] = frozenset()
    patience_s: ClassVar[float] = PATIENCE_S

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "rule" in metafunc.fixturenames:
            check_capabilities(self.capabilities, self.known_capabilities)
            rules = [
                each for each in self.rules if not each.needs or each.needs in self.capabilities
            ]
            metafunc.parametrize("rule", rules, ids=lambda rule: rule.name)


class TransportContract(Contract):
    """Base class of a transport's contract tests.

    Example:
        >>> class TestMyTransport(TransportContract):
        ...     def make_transport(self, run_dir):
        ...         return MyTransport({}, run_dir)

    Attributes:
        capabilities: Which of ``CAPABILITIES`` the transport has. Rules that need another one
            are no tests.
        patience_s: How long something that must happen may take.
    """

    rules = RULES
    known_capabilities = CAPABILITIES

    def make_transport(self, run_dir: Path) -> Transport:
        """Return a fresh transport for a run folder. Rules may call it more than once."""
        raise NotImplementedError(f"{type(self).__name__}.make_transport(run_dir) is missing")

    def test_transport(self, rule: Rule, tmp_path: Path) -> None:
        check_rule(
            rule,
            self.make_transport,
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )


class BufferContract(Contract):
    """Base class of a replay buffer's contract tests, and of those of its parts.

    Example:
        >>> class TestMyBuffer(BufferContract):
        ...     capabilities = frozenset({"columns", "distinct", "parts"})
        ...     def make_buffer(self, cfg):
        ...         return MyBuffer({"storage": {"type": "array"}, **cfg})

    Attributes:
        capabilities: Which of ``BUFFER_CAPABILITIES`` the buffer has. Rules that need another
            one are no tests.
        patience_s: How long something that must happen may take.
    """

    rules = BUFFER_RULES
    known_capabilities = BUFFER_CAPABILITIES

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        """Return a fresh buffer with these settings. Rules may call it more than once."""
        raise NotImplementedError(f"{type(self).__name__}.make_buffer(cfg) is missing")

    def test_buffer(self, rule: Rule, tmp_path: Path) -> None:
        check_buffer_rule(
            rule,
            self.make_buffer,
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )


class PolicyContract(Contract):
    """Base class of a policy's contract tests.

    Example:
        >>> class TestMyPolicy(PolicyContract):
        ...     observation_space = gymnasium.spaces.Box(-1, 1, (4,))
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     def make_policy(self, enable_field, seed):
        ...         return MyPolicy(CFG, enable_field=enable_field, seed=seed)

    Attributes:
        observation_space: gymnasium space of one env's observation.
        action_space: gymnasium space of one env's action.
        capabilities: Which of ``POLICY_CAPABILITIES`` the policy has. Rules that need another
            one are no tests.
        patience_s: How long something that must happen may take.
    """

    rules = POLICY_RULES
    known_capabilities = POLICY_CAPABILITIES
    observation_space: ClassVar[Any]
    action_space: ClassVar[Any]

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        """Return a fresh policy. Rules may call it more than once."""
        raise NotImplementedError(
            f"{type(self).__name__}.make_policy(enable_field, seed) is missing"
        )

    def test_policy(self, rule: Rule, tmp_path: Path) -> None:
        check_policy_rule(
            rule,
            PolicyUnderTest(self.make_policy, self.observation_space, self.action_space),
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )
