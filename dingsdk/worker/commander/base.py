"""The interface of commanders in parallel mode, which the coordinator calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dingsdk.config import Configurable, Count, NotNegative, PartSection, Whole

if TYPE_CHECKING:
    from dingsdk.worker.comm.transport import PolicyStore

Task = dict[str, Any]


class PlayerProgress(NamedTuple):
    """Progress of one of several players.

    Attributes:
        train_iter: Iterations that its policy was trained for.
        env_steps: Env steps collected for it.
        episodes: Finished episodes that were played for it, in collector tasks that have ended.
        samples: Samples of these tasks.
    """

    train_iter: int
    env_steps: int
    episodes: int = 0
    samples: int = 0


NO_PROGRESS = PlayerProgress(0, 0)


class LimitedSpaceContainer:
    """Counts places in use between two limits. Not thread safe: the caller locks.

    Args:
        min_val: Count at the start; the count never falls below it.
        max_val: Largest count.
    """

    def __init__(self, min_val: int, max_val: int) -> None:
        self.min_val = min_val
        self.max_val = max_val
        self.cur = min_val

    def acquire_space(self) -> bool:
        """Take a place; return False if none is free."""
        if self.cur >= self.max_val:
            return False
        self.cur += 1
        return True

    def release_space(self) -> None:
        """Give a place back; the count never goes below the minimum."""
        self.cur = max(self.min_val, self.cur - 1)

    def increase_space(self) -> None:
        """Allow one place more."""
        self.max_val += 1

    def decrease_space(self) -> None:
        """Allow one place less, never below the minimum; places in use stay in use."""
        self.max_val = max(self.min_val, self.max_val - 1)

    def state_dict(self) -> dict[str, int]:
        """Return how many places are in use, and the limit."""
        return {"cur": self.cur, "max_val": self.max_val}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore a state of ``state_dict``."""
        self.cur, self.max_val = int(state["cur"]), int(state["max_val"])

    def get_residual_space(self) -> int:
        """Return how many places are free, >= 0."""
        return max(0, self.max_val - self.cur)


class BaseParallelCommander(Configurable, ABC):
    """Issues tasks and follows them to their end. Not thread safe: the coordinator locks.

    Every task takes a place until it is finished or reported as failed; no task is issued
    while all places of its kind are taken.

    Args:
        cfg: The compiled main config; the commander's own section is
            ``policy.other.commander``. The config is only read.

    Differs from the reference: ``collector_task_space`` is None by default, which allows one
    task at a time for each collector.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.other.commander``.

        Attributes:
            collector_task_space: Collector tasks that run at the same time; None: one for each
                collector.
            learner_task_space: Learner tasks that run at the same time.
            eval_interval: Another name for ``policy.eval.evaluator.eval_interval_s``.
            max_policy_lag: How many versions a sample may be behind the newest policy when it is
                trained on (on-policy only). With 0, collectors stop while the learner trains. None
                for no limit: samples of any age are trained on, and a piece of a trajectory
                continues when a newer policy is loaded.
        """

        collector_task_space: Count | None = None
        learner_task_space: Count = 1
        eval_interval: NotNegative | None = None
        max_policy_lag: Whole | None = 0

    policy_store: PolicyStore
    """The store of the run's policies; set by the coordinator before the first task."""
    begins_at: PlayerProgress = NO_PROGRESS
    """Progress of the checkpoint that the learners load; set like ``policy_store``."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._cfg = cfg
        section = cfg["policy"]["other"]["commander"]
        own = self._own = self.read(section, "policy.other.commander")
        space = own.collector_task_space
        if space is None:
            space = cfg.get("system", {}).get("collector_num", 1)
        self._collector_space = LimitedSpaceContainer(0, int(space))
        self._learner_space = LimitedSpaceContainer(0, own.learner_task_space)

    @classmethod
    def policy_num(cls, cfg: Mapping[str, Any]) -> int:
        """Return how many policies train at the same time, each with its own learner task.

        A run starts this many learners, and makes this many last evaluations.
        """
        return 1

    def players(self) -> Mapping[str, PlayerProgress]:
        """Return the progress of each player by id, in order; empty if only one player trains.

        Tasks of all players but the first have the player's id as ``player``.
        """
        return {}

    @abstractmethod
    def get_collector_task(self) -> Task | None:
        """Return the next collector task, or None while there is none to do."""

    @abstractmethod
    def get_learner_task(self) -> Task | None:
        """Return the next learner task, or None while there is none to do."""

    def get_eval_task(self) -> Task | None:
        """Return a collector task that evaluates if an evaluation is due, else None.

        Called instead of ``get_collector_task`` when collecting is over and learners still train.
        """
        return None

    def get_last_eval_task(self) -> Task | None:
        """Return a collector task that evaluates the final policy, or None for no evaluation.

        Called ``policy_num`` times after a limit has ended the training and all tasks have ended.
        """
        return None

    def judge_collector_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a collector that reports ``info`` has done its task."""
        return bool(info.get("collector_done", False))

    def judge_learner_finish(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Return whether a learner that reports ``info`` has done its task."""
        return bool(info.get("learner_done", False))

    @abstractmethod
    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> bool | None:
        """Process a collector's finish info; return True if the whole run has reached its goal."""

    @abstractmethod
    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        """Process a learner's finish info; return the id of the buffer to close."""

    @abstractmethod
    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        """Called when a collector task ended without a result."""

    @abstractmethod
    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        """Called when a learner task ended without a result."""

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Called with the info of a learner's iteration."""

    def update_collector_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Called with the progress of a running collector, such as ``cur_step``."""

    def get_collect_setting(self, task_id: str) -> Mapping[str, Any] | None:
        """Return new keyword arguments for the collect policy of a running task.

        Called at each report of the collector; None keeps the current arguments.
        """
        return None

    def wants_end_of(self, task_id: str) -> bool:
        """Return whether a running collector task is to end now, before its last episode.

        Called at each report of the collector. The collector sends the samples that it has, and
        another task continues its episodes.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides which tasks it issues, as plain data without arrays.

        A restarted coordinator continues from this state. A subclass adds its own state to the
        result; without an override it cannot be resumed, and the run says so.
        """
        return {
            "collector_space": self._collector_space.state_dict(),
            "learner_space": self._learner_space.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict``; unfinished tasks in it still count as issued.

        Raises:
            CheckpointCorruptError: it is not a state of this commander.
        """
        self._collector_space.load_state_dict(state["collector_space"])
        self._learner_space.load_state_dict(state["learner_space"])

    def resume(self) -> None:
        """Restore data that was lost with the earlier processes of a run, such as its policies.

        Called once, after the last ``load_state_dict`` and before the first task is requested.

        Raises:
            CheckpointError: the data is gone.
        """

    def statistics(self) -> dict[str, float]:
        """Return values to plot as curves, by name; called after each collector task."""
        return {}

    def increase_collector_task_space(self) -> None:
        """Allow one more collector task at a time."""
        self._collector_space.increase_space()

    def decrease_collector_task_space(self) -> None:
        """Allow one collector task less at a time; running tasks end as usual."""
        self._collector_space.decrease_space()
