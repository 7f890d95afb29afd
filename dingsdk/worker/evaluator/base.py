"""Base class of serial evaluators: the interface, and when to evaluate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import structs

from dingsdk.errors import ConfigError
from dingsdk.plugins import observe
from dingsdk.worker.evaluator.schedule import EvalSchedule, EvaluatorSection
from dingsdk.worker.run_logger import write_statistics
from dingsdk.worker.serial_worker import SerialWorker


def plays_episodes(evaluator: object) -> bool:
    """Return ``plays`` of an evaluator or its class; True for one without it."""
    return bool(getattr(evaluator, "plays", True))


class ISerialEvaluator(SerialWorker):
    """An evaluator in the caller's thread; arguments as ``SerialWorker``."""

    class Config(EvaluatorSection, frozen=True, kw_only=True):
        """Section ``policy.eval.evaluator``."""

    saved: ClassVar[tuple[str, ...]] = ("_best_result",)

    plays: ClassVar[bool] = True
    """Whether it plays episodes in envs; if not, a run passes no env to it."""
    tells_observers = True
    """Whether it notifies observers of each evaluation; for a worker its coordinator does."""
    _default_name = "evaluator"
    _best_result: tuple[bool, Any]
    """For the best evaluation: whether the policy was trained, and its result."""

    @abstractmethod
    def eval(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        """Evaluate the current policy; return (whether to stop training, result)."""

    def should_eval(self, train_iter: int, envstep: int = 0) -> bool:
        """Return whether it is time to evaluate; if True, also record the evaluation as done.

        True the first time and when ``eval_freq`` iterations, ``eval_freq_env_steps`` env steps
        or ``eval_interval_s`` seconds have passed since the last, never twice for one iteration.
        """
        is_due = self._schedule.is_due(train_iter, envstep)
        if is_due:
            self._schedule.note(train_iter, envstep)
        return is_due

    def _note_result(
        self,
        result: Any,
        train_iter: int,
        is_better: Callable[[Any, Any], bool],
        save_ckpt_fn: Callable[[str], Any] | None,
    ) -> None:
        """Save the policy if it is the best one, or the first trained one."""
        is_trained, (was_trained, best) = train_iter != 0, self._best_result
        is_best = is_better(result, best) if is_trained == was_trained else is_trained
        if is_best:
            self._best_result = (is_trained, result)
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best")

    def _tell_observers(self, mean_return: float, train_iter: int, envstep: int) -> None:
        if self.tells_observers:
            observe().after_evaluate(
                source=self._instance_name,
                mean_return=mean_return,
                train_iter=train_iter,
                envstep=envstep,
            )

    def _report(
        self, statistics: Mapping[str, float], train_iter: int, envstep: int, result: str = ""
    ) -> None:
        """Write statistics to the log and to tensorboard."""
        table = self._logger.get_tabulate_vars_hor(statistics)
        self._logger.info(
            "evaluation at iteration %d, %d env steps%s\n%s", train_iter, envstep, result, table
        )
        write_statistics(self._tb_logger, self._instance_name, statistics, train_iter, envstep)

    def state_dict(self) -> dict[str, Any]:
        """As ``Savable``; the state of the envs is left to their manager."""
        return {**super().state_dict(), "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._schedule.load_state_dict(state["schedule"])

    def _zero(self) -> None:
        self._best_result = (False, -float("inf"))
        self._schedule = EvalSchedule(structs.asdict(self._cfg))


def returns_of(result: Any) -> list[float]:
    """Return the numbers of an evaluation that a run records: its returns, or its metric.

    Raises:
        ConfigError: the result is neither.
    """
    if isinstance(result, Mapping) and "eval_episode_return" in result:
        return [float(each) for each in result["eval_episode_return"]]
    try:
        return [float(result)]
    except (TypeError, ValueError) as error:
        path = "policy.eval.evaluator.data"
        raise ConfigError(
            f"{path}: a run needs a metric whose result is one number, found {result!r:.80}",
            path=path,
        ) from error
