"""What a coordinator may ask of a commander in parallel mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dingsdk.config import Configurable, Count, NotNegative, PartSection, Whole

if TYPE_CHECKING:
    from dingsdk.worker.comm.transport import PolicyStore

Task = dict[str, Any]


class PlayerProgress(NamedTuple):
    """How far one of several players is.

    Attributes:
        train_iter: Iterations that its policy was trained for.
        env_steps: Env steps collected for it.
    """

    train_iter: int
    env_steps: int


class LimitedSpaceContainer:
    """Counts places in use between two limits. Not thread safe: the caller locks.

    Args:
        min_val: Count at the start, and the least that releases leave.
        max_val: Count at which nothing more is acquired.
    """

    def __init__(self, min_val: int, max_val: int) -> None:
        if min_val < 0 or max_val < min_val:
            raise ValueError(f"need 0 <= min <= max, found min {min_val}, max {max_val}")
        self.min_val = min_val
        self.max_val = max_val
        self.cur = min_val

    def acquire_space(self) -> bool:
        """Take a place; return False where none is free."""
        if self.cur >= self.max_val:
            return False
        self.cur += 1
        return True

    def release_space(self) -> None:
        """Give a place back; never goes below the minimum."""
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
        """Take over such a state."""
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
            ``policy.other.commander``. It is only read.

    Differs from the reference: ``collector_task_space`` is None by default, for as many
    tasks at a time as there are collectors.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``policy.other.commander``.

        Attributes:
            collector_task_space: Collector tasks that run at the same time; None: one for each
                collector.
            learner_task_space: Learner tasks that run at the same time.
            eval_interval: Another name of ``policy.eval.evaluator.eval_interval_s``.
            max_policy_lag: Versions that a sample of an on-policy policy may be behind the newest
                when it is trained on. With 0 collectors stop while the learner trains.
        """

        collector_task_space: Count | None = None
        learner_task_space: Count = 1
        eval_interval: NotNegative | None = None
        max_policy_lag: Whole = 0

    policy_store: PolicyStore | None = None
    """Where the run's policies are; set by the coordinator before the first task."""

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
        """Return how many policies train at the same time, each with a learner task of its own.

        A run starts as many learners, and makes as many last evaluations.
        """
        return 1

    def players(self) -> Mapping[str, PlayerProgress]:
        """Return how far each player is, by id, the first one first; empty where one trains.

        Tasks of the others have their id as ``player``.
        """
        return {}

    @abstractmethod
    def get_collector_task(self) -> Task | None:
        """Return the next collector task, or None while there is none to do."""

    @abstractmethod
    def get_learner_task(self) -> Task | None:
        """Return the next learner task, or None while there is none to do."""

    def get_eval_task(self) -> Task | None:
        """Return a collector task that evaluates, where an evaluation is due, or None.

        Called instead of ``get_collector_task`` once enough was collected, while learners go on.
        """
        return None

    def get_last_eval_task(self) -> Task | None:
        """Return the collector task that evaluates what a run has trained, or None for none.

        Called when a limit has ended the training and no task is out any more, ``policy_num``
        times.
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
        """Take a collector's finish info; return True when the whole run has reached its goal."""

    @abstractmethod
    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        """Take a learner's finish info; return the id of the buffer to close."""

    @abstractmethod
    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        """Learn that a collector task ended without a result."""

    @abstractmethod
    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        """Learn that a learner task ended without a result."""

    def update_learner_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Take the info of a learner's iteration."""

    def update_collector_info(self, task_id: str, info: Mapping[str, Any]) -> None:
        """Take the progress of a running collector (``cur_step`` and the like)."""

    def get_collect_setting(self, task_id: str) -> Mapping[str, Any] | None:
        """Return new keyword arguments for the collect policy of a task that runs.

        Asked at each report of the collector; None leaves those that it has.
        """
        return None

    def wants_end_of(self, task_id: str) -> bool:
        """Return whether a collector task that runs is to end now, before its last episode.

        Asked at each report of the collector. What it has collected is sent, and another task goes
        on with its episodes.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides which tasks it issues, as plain data without arrays.

        A coordinator that is started again goes on from there. A subclass adds what it keeps to
        what this returns; one that does not override it cannot be resumed, and the run says so.
        """
        return {
            "collector_space": self._collector_space.state_dict(),
            "learner_space": self._learner_space.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of ``state_dict``; tasks that were out then are out still.

        Raises:
            CheckpointCorruptError: it is none of this commander.
        """
        self._collector_space.load_state_dict(state["collector_space"])
        self._learner_space.load_state_dict(state["learner_space"])

    def resume(self) -> None:
        """Put back what went with the processes of a run that goes on, such as policies it needs.

        Called once, after the last ``load_state_dict`` and before it is asked for a task.

        Raises:
            CheckpointError: it is not there any more.
        """

    def statistics(self) -> dict[str, float]:
        """Return values of its own to draw curves of, by name; asked after each collector task."""
        return {}

    def increase_collector_task_space(self) -> None:
        """Allow one more collector task at a time."""
        self._collector_space.increase_space()

    def decrease_collector_task_space(self) -> None:
        """Allow one collector task less at a time; running ones end as usual."""
        self._collector_space.decrease_space()
