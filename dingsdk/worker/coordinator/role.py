"""A role: one kind of workers of a parallel run, and how their tasks are driven."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from dingsdk.config import Configurable, PartSection, Whole
from dingsdk.plugins import default_manager
from dingsdk.worker.comm.slave import Slave
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.run_view import RunView

WAIT_S = 1.0
"""Longest wait of a task between two checks whether it can continue."""


class Role(Configurable, ABC):
    """One kind of worker: creates its workers, drives its tasks, and provides its command.

    Registered under kind ``roles`` by its name. A run has a learner and collectors, a replay server
    if ``system.replay`` says so, and one more role for each key of ``system.roles``. Every process
    of the run creates its own role object: a worker process creates the worker with it, the
    coordinator drives the tasks with it.

    ``dingsdk <name>`` starts one worker of the role by hand; the first line of the class's
    docstring is the command's help.

    Args:
        cfg: The role's own section, ``system.roles.<name>``.
        run_cfg: The compiled config of the run.

    Attributes:
        name: Type key of the role; workers send it when they join.
        ends_run: Whether the run ends when a task of the role is given up.
        resumes: Whether another worker continues the progress of a lost one; else it starts the
            task from the beginning.
        rejoins: Whether ``go_on`` can drive a task that was begun for an earlier coordinator.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``system.roles.<name>``.

        Attributes:
            num: Number of workers that a run starts by itself.
        """

        num: Whole = 1

    name: ClassVar[str]
    ends_run: ClassVar[bool] = False
    resumes: ClassVar[bool] = False
    rejoins: ClassVar[bool] = False

    def __init__(self, cfg: Mapping[str, Any], run_cfg: Mapping[str, Any]) -> None:
        self.cfg = self.read(cfg)
        self.run_cfg = run_cfg

    @classmethod
    def check_run(cls, run: RunView) -> str:
        """Return why a run cannot have workers of this role, if ``system.roles`` names it."""
        return ""

    @property
    def worker_num(self) -> int:
        """Number of workers that a run starts by itself, >= 0."""
        return int(self.cfg.num)

    @abstractmethod
    def create_worker(self, transport: Transport, worker_id: str) -> Slave:
        """Return an unstarted worker."""

    @abstractmethod
    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        """Return the next task, with a new ``task_id``, or None while there is none.

        Called often while a worker of the role is idle, with the coordinator's condition held.
        """

    @abstractmethod
    def drive(self, coordinator: Any, state: TaskState, task: Mapping[str, Any]) -> None:
        """Run one task on its worker, from the first message to the last.

        Called on its own job. An error ends the task: after ``WorkerLostError`` and
        ``TaskTimeoutError`` it is tried again on another worker, any other error ends the run.
        ``coordinator`` is the run's ``Coordinator``. ``task`` is the task to send to the worker:
        ``state.task`` with ``<role>_id`` and ``resource_info`` added.
        """

    def go_on(self, coordinator: Any, state: TaskState) -> None:
        """Drive a task whose worker has rejoined a restarted coordinator.

        Called like ``drive``, for roles with ``rejoins``; the worker has kept its work.
        """
        raise NotImplementedError

    def can_run(self, state: TaskState, buffers: Mapping[str, LivePayloads]) -> bool:
        """Return whether a task can be assigned now, or again; the condition is held.

        ``buffers`` are the open buffers by buffer id.
        """
        return True

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        """Return the task for the next worker, after the worker of ``state`` was lost."""
        return state.task

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        """Called when a task ended without a result; the condition is held."""


def create_roles(cfg: Mapping[str, Any]) -> dict[str, Role]:
    """Return the roles of a run by name; roles that others wait for come first.

    Raises:
        UnknownPluginError: nothing provides a role that ``system.roles`` names.
    """
    replay = cfg["system"].get("replay") or {}
    served = ["replay-server"] if replay.get("type") == "server" and not replay["address"] else []
    names = [*served, "learner", "collector", *extra_roles(cfg)]
    return {name: create_role(name, cfg) for name in names}


def create_role(name: str, cfg: Mapping[str, Any]) -> Role:
    """Return one role of a run; errors as ``create_roles``."""
    section = {**extra_roles(cfg).get(name, {}), "type": name}
    path = f"system.roles.{name}"
    return cast(Role, default_manager().create("roles", section, cfg, config_path=path))


def extra_roles(cfg: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the sections of a run's roles besides learner, collector and replay server."""
    return cfg["system"].get("roles") or {}
