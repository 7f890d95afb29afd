"""The built-in roles: learner and collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.data import derive_seed
from dingsdk.worker.comm.allowed_imports import named_modules
from dingsdk.worker.comm.transport import Transport
from dingsdk.worker.comm.worker import CommWorker
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.experience import Experience
from dingsdk.worker.coordinator.role import Role, TaskControl
from dingsdk.worker.coordinator.tasks import TaskPhase, TaskState
from dingsdk.worker.factory import create_comm_collector, create_comm_learner

WAIT_S = 1.0
LAST_ANSWERS = 3
"""Answers taken from a collector that is done but has not ended, before it is closed."""
REFUSED_PAUSE_S = 0.05
"""Pause before a buffer that refused to serve a batch is asked again."""


class LearnerRole(Role):
    """Train for a coordinator until the run ends. Ctrl-C saves a checkpoint and leaves."""

    name: ClassVar[str] = "learner"
    ends_run: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    @property
    def worker_num(self) -> int:
        return int(self.run_cfg["system"]["learner_num"])

    def create_worker(self, transport: Transport, worker_id: str) -> CommWorker:
        worker: CommWorker = create_comm_learner(
            _comm_section(self), transport=transport, worker_id=worker_id
        )
        return worker

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return commander.get_learner_task()

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        commander.notify_fail_learner_task(task)

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        # The learner knows where its checkpoints are; that may be another host.
        return {**state.task, "resume": True}

    def drive(self, control: TaskControl, state: TaskState, task: Mapping[str, Any]) -> None:
        """Start a learner, lease it batch after batch until it is done, close it."""
        control.open_experience(state)
        try:
            self._drive(control, state, task)
        finally:
            control.end_batch_leases(state)

    def _drive(self, control: TaskControl, state: TaskState, task: Mapping[str, Any]) -> None:
        start = {"name": "learner_start_task", "task_info": task}
        control.ask(state, start, "start_timeout_s")
        control.deal_with_task_started(state)
        is_done = False
        while not is_done and not control.is_ending:
            demand = control.ask(state, {"name": "learner_get_data_task"})
            control.deal_with_storage(state, str(demand.get("held_up_by", "")))
            if demand.get("pending"):
                is_done = bool(demand["learner_done"])
                continue
            data = _wait_for_data(control, state, demand)
            if data is None:
                break
            learn = {"name": "learner_learn_task", "data": data}
            info = control.ask(state, learn, "learn_timeout_s")["info"]
            control.deal_with_learner_send_info(state, info)
            is_done = control.deal_with_learner_judge_finish(state, info)
        state.phase = TaskPhase.CLOSING
        finished = control.ask(state, {"name": "learner_close_task"})
        control.deal_with_learner_finish_task(state, finished, has_trained_out=is_done)


class CollectorRole(Role):
    """Collect for a coordinator until the run ends. Ctrl-C leaves the run."""

    name: ClassVar[str] = "collector"

    @property
    def worker_num(self) -> int:
        return int(self.run_cfg["system"]["collector_num"])

    def create_worker(self, transport: Transport, worker_id: str) -> CommWorker:
        worker: CommWorker = create_comm_collector(
            _comm_section(self), transport=transport, worker_id=worker_id
        )
        return worker

    def next_task(self, commander: BaseParallelCommander) -> Task | None:
        return commander.get_collector_task()

    def task_failed(self, commander: BaseParallelCommander, task: Mapping[str, Any]) -> None:
        commander.notify_fail_collector_task(task)

    def can_run(self, state: TaskState, experiences: Mapping[str, Experience]) -> bool:
        # The buffer comes with its learner's task, and goes with it.
        return state.buffer_id in experiences

    def retried(self, state: TaskState) -> Mapping[str, Any]:
        cfg = state.task["collector_cfg"]
        if cfg.get("seed") is None or state.is_evaluation:
            return state.task
        # Other episodes than those that were sampled before the worker was lost.
        seed = derive_seed(int(cfg["seed"]), "attempt", state.attempt)
        return {**state.task, "collector_cfg": {**cfg, "seed": seed}}

    def drive(self, control: TaskControl, state: TaskState, task: Mapping[str, Any]) -> None:
        """Start a collector, take its reports until it is done, close it."""
        start = {"name": "collector_start_task", "task_info": task}
        control.ask(state, start, "start_timeout_s")
        control.deal_with_task_started(state)
        control.deal_with_collecting()
        is_done, answers_left = False, LAST_ANSWERS
        while answers_left and not control.must_end(state):
            demand = {"name": "collector_data_task", "is_held_up": bool(control.held_up_by)}
            answer = control.ask(state, demand)
            control.deal_with_storage(state, str(answer.get("held_up_by", "")))
            reports = answer["reports"]
            state.waiting = frozenset(str(r["data_id"]) for r in reports if "data_id" in r)
            for report in reports:
                if "data_id" in report:
                    _acknowledge(control, state, report)
                is_done |= control.deal_with_collector_progress(state, report)
            if answer["has_ended"]:
                break
            # A collector that is done may still ship what it holds.
            answers_left -= is_done
        state.phase = TaskPhase.CLOSING
        finished = control.ask(state, {"name": "collector_close_task"})
        control.deal_with_collector_finish_task(state, finished)


def _comm_section(role: Role) -> dict[str, Any]:
    """Return the section of a comm worker; its tasks may import what this config names."""
    section = {"type": "base", **role.run_cfg["system"].get(role.name, {})}
    section["allowed_modules"] = sorted(
        named_modules(role.run_cfg).union(section.get("allowed_modules") or ())
    )
    return section


def _acknowledge(control: TaskControl, state: TaskState, report: Mapping[str, Any]) -> None:
    """Add a payload once the buffer admits it; meanwhile the worker's own queue fills.

    It has no deadline: a collector waits as long as its learner needs, and the learner's own
    deadlines hold. At the end of the run the payload is left unacknowledged.
    """
    rows = int(report["rows"])

    def can_go_on() -> bool:
        experience = control.experience_of(state)
        return control.is_ending or experience is None or experience.buffer.can_push(rows)

    while not control.is_ending:
        # Another collector may take the room between the wait and the push.
        if control.deal_with_collector_send_data(state, report):
            return
        with control.condition:
            control.condition.wait_for(can_go_on, WAIT_S)


def _wait_for_data(
    control: TaskControl, state: TaskState, demand: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Wait until the buffer serves the demand; None: the task must end."""
    batch_size = int(demand["batch_size"])

    def can_go_on() -> bool:
        experience = control.experience_of(state)
        return control.is_ending or experience is None or experience.buffer.can_sample(batch_size)

    while True:
        with control.condition:
            control.condition.wait_for(can_go_on, WAIT_S)
            has_experience = control.experience_of(state) is not None
        if control.is_ending:
            return None
        data = control.deal_with_learner_get_data(state, demand)
        if data is not None or not has_experience:
            return data
        with control.condition:  # the buffer refused all the same; do not spin
            control.condition.wait_for(lambda: control.is_ending, REFUSED_PAUSE_S)
