"""Roles: the kinds of workers that a parallel run has, and how their tasks are driven."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from dingsdk.config import Configurable, PartSection, Whole
from dingsdk.plugins import default_manager
from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import CommWorker
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.experience import Experience
from dingsdk.worker.coordinator.tasks import TaskState


class TaskControl(Protocol):
    """What the driver of a task may ask of the coordinator.

    Each driver runs on a job of its own and calls these without the condition held, but for
    ``experience_of``. The ``deal_with_*`` methods are described at ``Coordinator``.
    """

    condition: Condition
    """Guards the coordinator's state; its waiters are notified at every change."""

    @property
    def is_ending(self) -> bool:
        """Whether the training is over."""

    @property
    def held_up_by(self) -> str:
        """Why workers wait for free storage; empty while they do not."""

    def must_end(self, state: TaskState) -> bool:
        """Return whether to close the task now; an evaluation may outlive the training."""

    def ask(
        self, state: TaskState, data: Mapping[str, Any], timeout_key: str = "answer_timeout_s"
    ) -> Mapping[str, Any]:
        """Send a message to the task's worker and return its answer.

        Args:
            state: The task.
            data: The message; its ``name`` selects the worker's function.
            timeout_key: Key of ``system.coordinator`` that bounds the wait.

        Raises:
            TaskFailedError: the worker's code raised.
            WorkerLostError: the worker is lost.
            TaskTimeoutError: there was no answer in time.
        """

    def experience_of(self, state: TaskState) -> Experience | None:
        """Return the experience that the task works for; call with the condition held."""

    def open_experience(self, state: TaskState) -> None:
        """Create the replay buffer that a learner task names, if it does not exist."""

    def end_batch_leases(self, state: TaskState) -> None:
        """Release the payloads of all batches that were leased to a task."""

    def deal_with_task_started(self, state: TaskState) -> None:
        """The worker has started the task."""

    def deal_with_storage(self, state: TaskState, held_up_by: str) -> None:
        """Note why a worker waits to store what it has; empty where it does not wait."""

    def deal_with_collecting(self) -> None:
        """A collector steps its envs; the first one starts the clock of the run."""

    def deal_with_collector_send_data(self, state: TaskState, meta: Mapping[str, Any]) -> bool:
        """Take the metadata of a payload; False while the buffer admits no rows."""

    def deal_with_collector_progress(self, state: TaskState, report: Mapping[str, Any]) -> bool:
        """Take a progress report; return whether the collector is done."""

    def deal_with_collector_finish_task(
        self, state: TaskState, finished: Mapping[str, Any]
    ) -> None:
        """A collector task ended with this result."""

    def deal_with_learner_get_data(
        self, state: TaskState, demand: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Lease rows to a learner; None while there are too few."""

    def deal_with_learner_send_info(self, state: TaskState, info: Mapping[str, Any]) -> None:
        """Take priorities and progress of a train iteration."""

    def deal_with_learner_judge_finish(self, state: TaskState, info: Mapping[str, Any]) -> bool:
        """Return whether the learner task is to end."""

    def deal_with_learner_finish_task(
        self, state: TaskState, finished: Mapping[str, Any], *, has_trained_out: bool
    ) -> None:
        """A learner task ended with this result."""


class Role(Configurable, ABC):
    """One kind of worker: what it runs, how its tasks are driven, and its command.

    Registered under kind ``roles`` by its name. A run has a learner and collectors, and one role
    more for each key of ``system.roles``. Every process of the run creates its own object: a
    worker's to create the worker, the coordinator's to drive the tasks.

    ``dingsdk <name>`` starts one worker of the role by hand; the first line of the class's
    docstring is the command's help.

    Args:
        cfg: The role's own section, ``system.roles.<name>``.
        run_cfg: The compiled config of the run.

    Attributes:
        name: Type key of the role; workers state it when they join.
        ends_run: Whether the run ends when a task of the role is given up.
        resumes: Whether another worker goes on where a lost one was; else it begins anew.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``system.roles.<name>``.

        Attributes:
            num: Workers that a run starts by itself.
        """

        num: Whole = 1

    name: ClassVar[str]
    ends_run: ClassVar[bool] = False
    resumes: ClassVar[bool] = False

    def __init__(self, cfg: Mapping[str, Any], run_cfg: Mapping[str, Any]) -> None:
        self.cfg = self.read(cfg)
        self.run_cfg = run_cfg

    @property
    def worker_num(self) -> int:
        """Workers that a run starts by itself, >= 0."""
        return int(self.cfg.num)

    @abstractmethod
    def create_worker(self, transport: Transport, worker_id: str) -> CommWorker:
        """Return an unstarted worker."""

    @abstractmethod
    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        """Return the next task, with a ``task_id`` of its own, or None while there is none.

        Called often while a worker of the role is idle, the coordinator's condition held.
        """

    @abstractmethod
    def drive(self, control: TaskControl, state: TaskState, task: Mapping[str, Any]) -> None:
        """Run one task on its worker, from the first message to the last.

        Called on a job of its own. Whatever it raises ends the task: ``WorkerLostError`` and
        ``TaskTimeoutError`` have it tried again on another worker, others end the run.

        Args:
            control: The coordinator.
            state: The task's state.
            task: What the worker gets: the task, its ``<role>_id`` and ``resource_info``.
        """

    def can_run(self, state: TaskState, experiences: Mapping[str, Experience]) -> bool:
        """Return whether a task can be assigned now, or again; the condition is held.

        Args:
            state: The task.
            experiences: The open experiences by buffer id.
        """
        return True

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        """Return the task as the next worker gets it, after one was lost over it."""
        return state.task

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        """Called when a task ended without a result; the condition is held."""


def create_roles(cfg: Mapping[str, Any]) -> dict[str, Role]:
    """Return the roles of a run by name; the learner first, as the others wait for it.

    Args:
        cfg: The compiled config.

    Raises:
        UnknownPluginError: nothing provides a role that ``system.roles`` names.
    """
    return {name: create_role(name, cfg) for name in ("learner", "collector", *_extra(cfg))}


def create_role(name: str, cfg: Mapping[str, Any]) -> Role:
    """Return one role of a run; errors as ``create_roles``."""
    section = {**_extra(cfg).get(name, {}), "type": name}
    path = f"system.roles.{name}"
    role: Role = default_manager().create("roles", section, cfg, config_path=path)
    return role


def _extra(cfg: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return cfg["system"].get("roles") or {}
