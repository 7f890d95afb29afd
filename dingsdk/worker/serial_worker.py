"""Base class of serial collectors and evaluators: env, policy and logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sized
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dingsdk.config import Configurable
from dingsdk.data.capture import Savable
from dingsdk.envs.base import EnvManager
from dingsdk.errors import NotSetError, SchemaMismatchError, wrong_type
from dingsdk.worker.run_logger import LogPace, build_logger


def expect_answer(part: Any, method: str, answer: Any, is_fit: bool, expected: str) -> None:
    """Check the value that a part, which may come from a plugin, returned to the training loop.

    Args:
        part: The object whose ``method`` was called.
        method: Name of the method.
        answer: The returned value.
        is_fit: Whether the loop can use the value.
        expected: Description of a valid value, for the error.

    Raises:
        SchemaMismatchError: ``is_fit`` is False.
    """
    if not is_fit:
        name, found = type(part).__qualname__, f"{type(answer).__qualname__} {answer!r:.80}"
        raise SchemaMismatchError(
            f"{name}.{method}() returned {found}; it must return {expected}",
            key=method,
            expected=expected,
            found=found,
        )


def evaluation_of(evaluator: Any, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    """Evaluate; return whether the goal is reached, and the result. Raises as ``expect_answer``."""
    answer = evaluator.eval(*args, **kwargs)
    is_pair = isinstance(answer, tuple | list) and len(answer) == 2
    expect_answer(evaluator, "eval", answer, is_pair, "(whether the goal is reached, result)")
    return answer[0], answer[1]


def samples_of(collector: Any, **kwargs: Any) -> Any:
    """Collect; return the train samples. Raises as ``expect_answer``."""
    answer = collector.collect(**kwargs)
    is_sequence = isinstance(answer, Sized)
    expect_answer(collector, "collect", answer, is_sequence, "a SampleBatch or a list of samples")
    return answer


def whole_number(name: str, found: Any) -> int:
    """Return an argument that counts samples or episodes.

    Raises:
        ConfigTypeError: it is not an integer >= 0.
    """
    is_integer = isinstance(found, int | np.integer) and not isinstance(found, bool)
    if not is_integer or found < 0:
        raise wrong_type(name, "a whole number >= 0", found)
    return int(found)


class SerialWorker(Configurable, Savable, ABC):
    """Base class of collectors and evaluators that run in the caller's thread. Not thread-safe.

    Env and policy may also be set later, with ``reset_env`` and ``reset_policy``.

    Args:
        cfg: See ``config`` of the class.
        env: An env manager; it is launched unless it is running already.
        policy: A collect or eval mode.
        tb_logger: Writer for scalars; it stays open at ``close()``. None: one is opened.
        exp_name: The run folder; logs go to ``{exp_name}/log/{instance_name}``.
        instance_name: Prefix of the scalars' tags; None for the default of the class.
    """

    not_for_runs: ClassVar[str] = ""
    """Why a run cannot build the class from its config; empty if it can."""
    resumes: ClassVar[bool] = False
    """Whether a worker that loads the state of another one continues exactly as that one would."""
    _config_path: ClassVar[str]
    _default_name: ClassVar[str] = "worker"

    def __init__(
        self,
        cfg: Mapping[str, Any],
        env: EnvManager | None = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str | None = None,
    ) -> None:
        instance_name = instance_name or self._default_name
        self._cfg = self.read(cfg, self._config_path)
        self._exp_name = exp_name
        self._instance_name = instance_name
        self._env: EnvManager | None = None
        self._policy: Any = None
        self._logger, self._own_tb = build_logger(
            str(Path(exp_name) / "log" / instance_name), instance_name, need_tb=tb_logger is None
        )
        self._tb_logger = self._own_tb if tb_logger is None else tb_logger
        self._log_pace = LogPace()
        self._is_closed = False
        try:
            self.reset(policy, env)
        except BaseException:
            self._logger.close()
            raise

    @property
    def env(self) -> EnvManager:
        """The env manager in use; raises NotSetError if there is none."""
        if self._env is None:
            raise self._not_set("env", "env manager")
        return self._env

    @property
    def policy(self) -> Any:
        """The policy mode in use; raises NotSetError if there is none."""
        if self._policy is None:
            raise self._not_set("policy", "policy")
        return self._policy

    def _not_set(self, what: str, kind: str) -> NotSetError:
        return NotSetError(
            f"please set {what} first: {self._instance_name} has no {kind}; pass one to the "
            f"constructor or to reset_{what}",
            what=what,
        )

    def reset_env(self, _env: EnvManager | None = None) -> None:
        """Use and launch another manager, or reset the envs of the current one.

        Raises:
            NotSetError: there is no manager.
            ConfigTypeError: ``_env`` is none, but for example an env.
        """
        if _env is not None:
            if not hasattr(_env, "launch"):
                advice = (
                    "; make one with dingsdk.envs.create_env_manager({'type': 'vector'}, "
                    "[make_env] * n), where make_env() makes one env, or drive a vector env of "
                    "your own by a subclass of dingsdk.envs.BaseVectorEnvManager"
                )
                raise wrong_type("env", "an env manager", _env, advice)
            self._env = _env
            if _env.closed:
                _env.launch()
                return
        self.env.reset()

    def detach_env(self) -> None:
        """Release the env manager, so that ``close`` does not close it."""
        self._env = None

    def reset_policy(self, _policy: Any = None) -> None:
        """Use another policy mode, or reset the current one.

        Raises:
            NotSetError: there is no policy.
            ConfigTypeError: ``_policy`` is no mode, but for example a policy.
        """
        self._take_policy(_policy)

    def reset(self, _policy: Any = None, _env: EnvManager | None = None) -> None:
        """Reset env and policy (None: the current ones), and all counters and caches."""
        if _env is not None or self._env is not None:
            self.reset_env(_env)
        if _policy is not None or self._policy is not None:
            self._take_policy(_policy)
        self._zero()

    def _take_policy(self, policy: Any) -> None:
        if policy is not None:
            if not hasattr(policy, "forward"):
                expected = "a mode of a policy, policy.collect_mode or policy.eval_mode"
                raise wrong_type("policy", expected, policy)
            self._policy = policy
        self.policy.reset()

    @abstractmethod
    def _zero(self) -> None:
        """Reset all counters and caches; also called by the constructor."""

    def close(self) -> None:
        """Close the env manager and the logs that were opened here; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:
            stack.callback(self._logger.close)
            if self._own_tb is not None:
                stack.callback(self._own_tb.close)
            if self._tb_logger is not None:
                stack.callback(self._tb_logger.flush)
            if self._env is not None:
                stack.callback(self._env.close)

    def __del__(self) -> None:
        # The constructor may have failed before it set any attribute. At interpreter exit, files
        # may be closed already ("flush of closed file"). No caller could handle an error here.
        with suppress(Exception):
            SerialWorker.close(self)  # not self.close(): that of a subclass might hang
