"""Base class of serial evaluators: the interface, and when to evaluate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from dingsdk.envs.base import EnvManager
from dingsdk.worker.serial_worker import SerialWorker


class ISerialEvaluator(SerialWorker):
    """An evaluator in the caller's thread; arguments as ``SerialWorker``."""

    _best_result: float
    _last_eval_iter: int

    def __init__(
        self,
        cfg: Mapping[str, Any],
        env: EnvManager | None = None,
        policy: Any = None,
        tb_logger: Any = None,
        exp_name: str = "default_experiment",
        instance_name: str = "evaluator",
    ) -> None:
        super().__init__(cfg, env, policy, tb_logger, exp_name, instance_name)

    @abstractmethod
    def eval(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        """Evaluate the current policy; return (whether to stop training, result)."""

    def should_eval(self, train_iter: int) -> bool:
        """Whether it is time to evaluate; True also notes ``train_iter`` as the last one.

        True at iteration 0 and when ``eval_freq`` iterations have passed since the last,
        never twice for one iteration.
        """
        if train_iter == self._last_eval_iter:
            return False
        if train_iter != 0 and train_iter - self._last_eval_iter < self._cfg.eval_freq:
            return False
        self._last_eval_iter = train_iter
        return True

    def _zero(self) -> None:
        self._best_result = -float("inf")
        self._last_eval_iter = -1
