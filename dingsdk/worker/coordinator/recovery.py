"""The state of a run as plain data, and how another coordinator goes on from the journal."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dingsdk.data.container import decode_json
from dingsdk.errors import (
    CheckpointCorruptError,
    ConflictError,
    ProtocolError,
    SchemaMismatchError,
    WorkerLostError,
)
from dingsdk.worker.comm.transport import LEFT, WorkerInfo
from dingsdk.worker.coordinator.journal import (
    EvaluationRecorded,
    Fact,
    Progressed,
    Pushed,
    Recovered,
    Settled,
    TaskChanged,
    TaskRecord,
    TrainingBegan,
)
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.coordinator.scheduler_state import RunTotals, SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState

_log = logging.getLogger(__name__)

_COMMANDER_BYTES = 1 << 30
"""Largest saved state of a commander."""


def saved_state(state: SchedulerState) -> dict[str, Any]:
    """Return everything that a restarted coordinator needs, as plain data."""
    running, queued = state.running.values(), state.queued
    return {
        "commander": state.commander_state(),
        "running": [msgspec.to_builtins(TaskRecord.of(task)) for task in running],
        "queued": [msgspec.to_builtins(TaskRecord.of(task)) for task in queued],
        "buffers": {name: each.state_dict() for name, each in state.buffers.items()},
        "elapsed_s": state.clock.elapsed_s,
        **msgspec.to_builtins(state.totals),
    }


def restore_state(state: SchedulerState, saved: Mapping[str, Any]) -> None:
    """Restore what ``saved_state`` returned into a new state.

    Its running tasks wait for their workers to rejoin, see ``OrphanTasks``.

    Raises:
        CheckpointCorruptError: it is not a state, or of another run.
    """
    try:
        _load_commander(state, saved["commander"])
        for record in saved["queued"]:
            task = _task_of(state, msgspec.convert(record, TaskRecord))
            state.queues[task.role].append(task)
        for record in saved["running"]:
            _give(state, _task_of(state, msgspec.convert(record, TaskRecord)))
        for buffer_id, content in saved["buffers"].items():
            state.open_buffer(state.learner_of(buffer_id)).load_state_dict(content)
        state.totals = msgspec.convert(saved, RunTotals)
        state.clock.elapsed_s = float(saved["elapsed_s"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(
            f"this is no state of a coordinator: {type(error).__name__}: {error}"
        ) from error


def recover(state: SchedulerState, recovered: Recovered) -> list[str]:
    """Restore the content of a journal into a new state; return ids of payloads to delete.

    Raises:
        CheckpointCorruptError: as ``restore_state``, or a fact does not fit the facts before it.
    """
    if recovered.state is not None:
        restore_state(state, recovered.state)
    for fact in recovered.facts:
        try:
            apply(state, fact)
        except (LookupError, ValueError) as error:
            raise CheckpointCorruptError(
                f"the journal has a fact that does not fit those before it: {fact!r:.200}"
            ) from error
    if recovered.state is not None or recovered.facts:
        state.commander.resume()
    settled = {each.task_id: each for each in recovered.facts if isinstance(each, Settled)}
    for task_id, fact in settled.items():
        info = {"learner_step": fact.train_iter, "learner_done": False, "priority_info": {}}
        state.commander.update_learner_info(task_id, info)
    for task in state.running.values():
        if not task.is_evaluation and task.env_steps:
            report = {"cur_step": task.env_steps + task.lost_env_steps}
            state.commander.update_collector_info(task.task_id, report)
    return [name for each in state.buffers.values() for name in each.take_garbage()]


def apply(state: SchedulerState, fact: Fact) -> None:
    """Apply a fact of an earlier coordinator.

    Raises:
        LookupError, ValueError: it does not fit the facts before it.
    """
    totals = state.totals
    if isinstance(fact, TaskChanged):
        task = _task_of(state, fact.task)
        state.running.pop(task.task_id, None)
        for known in [each for each in state.queued if each.task_id == task.task_id]:
            state.queues[known.role].remove(known)
        if fact.place == "queued":
            state.queues[task.role].append(task)
        elif fact.place == "running":
            _give(state, task)
            if task.owns_buffer:
                state.begin_home(task)
        else:
            state.forget(task)
        totals.ended_env_steps, totals.episodes = fact.env_steps, fact.episodes
        totals.learner_tasks = fact.learner_tasks
        _load_commander(state, fact.commander)
    elif isinstance(fact, EvaluationRecorded):
        totals.evaluations.append(fact.evaluation)
    elif isinstance(fact, Progressed):
        state.clock.elapsed_s = fact.elapsed_s
        task = state.running[fact.task_id]
        task.env_steps, task.progress = fact.env_steps, max(task.progress, fact.env_steps)
    elif isinstance(fact, Pushed):
        try:
            state.buffers[fact.buffer_id].push(msgspec.structs.asdict(fact), fact.env_steps)
        except (ConflictError, ProtocolError, SchemaMismatchError) as error:
            _log.debug("refused, as it was before: %s", error)
    elif isinstance(fact, Settled | TrainingBegan):
        task = state.running[fact.task_id]
        payloads, task.progress = state.buffers[task.buffer_id], fact.train_iter
        if isinstance(fact, Settled):
            payloads.settle({**fact.info, "learner_step": fact.train_iter})
        elif isinstance(payloads, OnPolicyPayloads):
            payloads.begin_training(fact.train_iter)
        else:
            raise ValueError("the journal is of an on-policy run")


def change_limit(state: SchedulerState, learner_cfg: Mapping[str, Any]) -> None:
    """Set ``train_iterations`` of this section for all running and queued learner tasks."""
    limit = {"train_iterations": learner_cfg["train_iterations"]}
    for task in (*state.running.values(), *state.queues["learner"]):
        if task.role == "learner":
            task.task = {**task.task, "learner_cfg": {**task.task["learner_cfg"], **limit}}


class OrphanTasks:
    """Running tasks without a worker: those of an earlier coordinator. The caller locks.

    Args:
        state: The state of the run, restored from the journal.

    Attributes:
        until: When the tasks are given to other workers.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.until = -math.inf
        self._state = state

    def wait(self, until: float) -> None:
        """Let the tasks wait for their workers until a time, and trainings for the collectors."""
        self.until = until
        for task in self.tasks:
            payloads = self._state.payloads_of(task)
            if task.kind == "collector" and payloads is not None and payloads.admission is not None:
                # It may have collected rows with any policy.
                payloads.admission.rejoin(task.task_id, admitted=1, used=0, policy_iter=0)

    @property
    def tasks(self) -> list[TaskState]:
        """The tasks whose workers have not rejoined."""
        return [task for task in self._state.running.values() if task.worker is None]

    def adopt(self, worker: WorkerInfo) -> TaskState | None:
        """Assign a task to the worker that rejoined with it; None if it continues no task."""
        kept = worker.resource.get("task")
        role = self._state.roles.get(worker.role)
        if role is None or not role.rejoins or not isinstance(kept, Mapping):
            return None
        ids = worker.role, str(kept.get("task_id")), str(kept.get("payload_prefix"))
        for task in self.tasks:
            if (task.role, task.task_id, task.payload_prefix) == ids:
                if kept.get("is_over"):
                    # Its last answer did not arrive, so another worker begins the task anew.
                    self._end(task)
                    return None
                task.worker = worker
                return task
        return None

    def expire(self) -> None:
        """Let other workers try the tasks whose workers did not rejoin."""
        for task in self.tasks:
            self._end(task)

    def _end(self, task: TaskState) -> None:
        text = f"the worker of {task.kind} task {task.task_id} has not come back"
        self._state.end(task, WorkerLostError(text, reason=LEFT))


def _task_of(state: SchedulerState, record: TaskRecord) -> TaskState:
    return TaskState(**msgspec.structs.asdict(record), start_time=state.clock())


def _give(state: SchedulerState, task: TaskState) -> None:
    task.step_limit = math.inf  # its collector may take steps before it rejoins
    state.running[task.task_id] = task


def _load_commander(state: SchedulerState, saved: bytes) -> None:
    state.commander.load_state_dict(decode_json("commander", saved, _COMMANDER_BYTES))
