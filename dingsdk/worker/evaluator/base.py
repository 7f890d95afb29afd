"""Base class of serial evaluators: the interface, and when to evaluate."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from dingsdk.worker.serial_worker import SerialWorker


class ISerialEvaluator(SerialWorker):
    """An evaluator in the caller's thread; arguments as ``SerialWorker``."""

    _default_name = "evaluator"
    _best_result: float
    _last_eval_iter: int

    @abstractmethod
    def eval(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        """Evaluate the current policy; return (whether to stop training, result)."""

    def should_eval(self, train_iter: int) -> bool:
        """Whether it is time to evaluate; True also notes ``train_iter`` as the last one.

        True at iteration 0 and when ``eval_freq`` iterations have passed since the last,
        never twice for one iteration.
        """
        passed = train_iter - self._last_eval_iter
        if passed == 0 or (train_iter != 0 and passed < self._cfg.eval_freq):
            return False
        self._last_eval_iter = train_iter
        return True

    def _zero(self) -> None:
        self._best_result = -float("inf")
        self._last_eval_iter = -1
