"""The rules as pytest tests, one test for each rule.

The how-to guide for each kind of plugin shows a test file with its contract class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dingsdk.envs.base import EnvManager
from dingsdk.envs.make import EnvFn
from dingsdk.policy.base import Policy
from dingsdk.testing.buffer_rules import BUFFER_BOOK
from dingsdk.testing.collector_rules import COLLECTOR_BOOK
from dingsdk.testing.commander_rules import COMMANDER_BOOK
from dingsdk.testing.env_rules import ENV_BOOK
from dingsdk.testing.evaluator_rules import EVALUATOR_BOOK
from dingsdk.testing.extension_rules import EXTENSION_RULES
from dingsdk.testing.part_rules import PART_RULES
from dingsdk.testing.policy_rules import POLICY_BOOK, PolicyUnderTest
from dingsdk.testing.rule import PATIENCE_S, Rule, RuleBook
from dingsdk.testing.rules import TRANSPORT_BOOK
from dingsdk.worker.collector.base import ISerialCollector
from dingsdk.worker.comm import Transport
from dingsdk.worker.commander.base import BaseParallelCommander
from dingsdk.worker.evaluator.base import ISerialEvaluator
from dingsdk.worker.learner.hooks import LearnerHook
from dingsdk.worker.replay_buffer import IBuffer


class Contract:
    """Base class of the contract classes: has a test that runs once for each rule.

    Attributes:
        book: The rules.
        maker: The name of the attribute that makes the part.
        capabilities: The capabilities of the part. Rules that need another one are not run.
        patience_s: How many seconds to wait for something that must happen.
    """

    book: ClassVar[RuleBook[Any]]
    maker: ClassVar[str]
    capabilities: ClassVar[Collection[str]] = frozenset()
    patience_s: ClassVar[float] = PATIENCE_S

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "rule" in metafunc.fixturenames:
            rules = self.book.applying(self.capabilities)
            metafunc.parametrize("rule", rules, ids=lambda rule: rule.name)

    def test_rule(self, rule: Rule, tmp_path: Path) -> None:
        self.book.check_rule(
            rule,
            self._part(),
            tmp_path,
            capabilities=self.capabilities,
            patience_s=self.patience_s,
        )

    def _part(self) -> Any:
        """Return the function with which the rules make the part."""
        return getattr(self, self.maker)

    def _missing(self, maker: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__}.{maker} is missing")


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


class BufferContract(Contract):
    """Contract tests of a replay buffer and its parts; see ``BUFFER_CAPABILITIES``."""

    book = BUFFER_BOOK
    maker = "make_buffer"

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        """Return a fresh buffer with these settings. Rules may call it more than once."""
        raise self._missing("make_buffer(cfg)")


class StorageContract(Contract):
    """Contract tests of a storage; see ``PART_RULES["storage"].known_capabilities``."""

    book = PART_RULES["storage"]
    maker = "make_part"

    def make_part(self, capacity: int, seed: int, folder: Path) -> Any:
        """Return a fresh part. Rules may call it more than once.

        Args:
            capacity: Maximum number of rows of the buffer.
            seed: Seed of its random numbers.
            folder: Folder for its files; a durable storage opens the rows that are in it.
        """
        raise self._missing("make_part(...)")


class SamplerContract(StorageContract):
    """Contract tests of a sampler; see ``PART_RULES["sampler"].known_capabilities``."""

    book = PART_RULES["sampler"]


class RemoverContract(StorageContract):
    """Contract tests of a remover; see ``PART_RULES["remover"].known_capabilities``."""

    book = PART_RULES["remover"]


class LimiterContract(StorageContract):
    """Contract tests of a limiter; see ``PART_RULES["limiter"].known_capabilities``."""

    book = PART_RULES["limiter"]


class PolicyContract(Contract):
    """Base class of a policy's contract tests; see ``POLICY_CAPABILITIES``.

    Attributes:
        observation_space: gymnasium space of one env's observation.
        action_space: gymnasium space of one env's action.
    """

    book = POLICY_BOOK
    observation_space: ClassVar[Any]
    action_space: ClassVar[Any]

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        """Return a fresh policy. Rules may call it more than once."""
        raise self._missing("make_policy(enable_field, seed)")

    def _part(self) -> Any:
        return PolicyUnderTest(self.make_policy, self.observation_space, self.action_space)


class CommanderContract(Contract):
    """Contract tests of a commander; see ``COMMANDER_CAPABILITIES``."""

    book = COMMANDER_BOOK
    maker = "make_commander"

    def make_commander(self, cfg: Mapping[str, Any]) -> BaseParallelCommander:
        """Return a fresh commander for a compiled config. Rules may call it more than once."""
        raise self._missing("make_commander(cfg)")


class EnvManagerContract(Contract):
    """Contract tests of an env manager; see ``ENV_CAPABILITIES``."""

    book = ENV_BOOK
    maker = "make_manager"

    def make_manager(
        self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
    ) -> EnvManager:
        """Return a manager that is not launched. Rules may call it more than once."""
        raise self._missing("make_manager(cfg, env_fns)")


class CollectorContract(Contract):
    """Contract tests of a serial collector of one policy; see ``COLLECTOR_CAPABILITIES``."""

    book = COLLECTOR_BOOK
    maker = "make_collector"

    def make_collector(
        self, cfg: Mapping[str, Any], env: Any, policy: Any, tb_logger: Any, exp_name: str
    ) -> ISerialCollector:
        """Return a new collector. Rules may call it more than once; ``env`` may be None."""
        raise self._missing("make_collector(...)")


class EvaluatorContract(Contract):
    """Contract tests of a serial evaluator that plays episodes; see ``EVALUATOR_CAPABILITIES``."""

    book = EVALUATOR_BOOK
    maker = "make_evaluator"

    def make_evaluator(
        self, cfg: Mapping[str, Any], env: Any, policy: Any, tb_logger: Any, exp_name: str
    ) -> ISerialEvaluator:
        """Return a new evaluator. Rules may call it more than once; ``env`` may be None."""
        raise self._missing("make_evaluator(...)")


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
