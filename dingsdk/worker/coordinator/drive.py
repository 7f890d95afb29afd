"""One task from start to end, as plain code: each runs on a job of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dingsdk.errors import DingError, TaskTimeoutError, WorkerLostError
from dingsdk.worker.coordinator.tasks import TaskPhase, TaskState

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator

WAIT_S = 1.0
LAST_ANSWERS = 3
"""Answers taken from a collector that is done but has not ended, before it is closed."""


def drive_collector(coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
    """Start a collector, take its reports until it is done, close it."""

    def steps() -> None:
        _start(coordinator, state, task)
        coordinator.deal_with_task_started(state)
        is_done, answers_left = False, LAST_ANSWERS
        while answers_left and not coordinator.must_end(state):
            demand = {"name": "collector_data_task", "is_held_up": bool(coordinator.held_up_by)}
            answer = _ask(coordinator, state, demand)
            coordinator.deal_with_storage(state, str(answer.get("held_up_by", "")))
            reports = answer["reports"]
            state.waiting = frozenset(str(r["data_id"]) for r in reports if "data_id" in r)
            for report in reports:
                if "data_id" in report:
                    _acknowledge(coordinator, state, report)
                is_done |= coordinator.deal_with_collector_progress(state, report)
            if answer["has_ended"]:
                break
            # A collector that is done may still ship what it holds.
            answers_left -= is_done
        state.phase = TaskPhase.CLOSING
        finished = _ask(coordinator, state, {"name": "collector_close_task"})
        coordinator.deal_with_collector_finish_task(state, finished)

    _drive(coordinator, state, steps)


def drive_learner(coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
    """Start a learner, lease it batch after batch until it is done, close it."""

    def steps() -> None:
        _start(coordinator, state, task)
        coordinator.deal_with_task_started(state)
        is_done = False
        while not is_done and not coordinator.is_ending:
            demand = _ask(coordinator, state, {"name": "learner_get_data_task"})
            coordinator.deal_with_storage(state, str(demand.get("held_up_by", "")))
            if demand.get("pending"):
                is_done = bool(demand["learner_done"])
                continue
            data = _wait_for_data(coordinator, state, demand)
            if data is None:
                break
            answer = _ask(
                coordinator, state, {"name": "learner_learn_task", "data": data}, "learn_timeout_s"
            )
            coordinator.deal_with_learner_send_info(state, answer["info"])
            is_done = coordinator.deal_with_learner_judge_finish(state, answer["info"])
        state.phase = TaskPhase.CLOSING
        finished = _ask(coordinator, state, {"name": "learner_close_task"})
        coordinator.deal_with_learner_finish_task(state, finished, has_trained_out=is_done)

    _drive(coordinator, state, steps)


def _drive(coordinator: Coordinator, state: TaskState, steps: Any) -> None:
    """Run the steps; whatever ends them, the coordinator hears of it."""
    try:
        steps()
    except WorkerLostError as error:
        coordinator.task_ended(state, TaskPhase.LOST, error)
    except TaskTimeoutError as error:
        # Lost first, so that its late answer cannot meet the next task.
        if state.worker is not None:
            worker = state.worker
            coordinator.master.lose(worker.worker_id, str(error), worker.incarnation)
        coordinator.task_ended(state, TaskPhase.LOST, error)
    except DingError as error:
        coordinator.task_ended(state, TaskPhase.FAILED, error)
    except Exception as error:
        wrapped = DingError(f"task {state.task_id}: {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        coordinator.task_ended(state, TaskPhase.FAILED, wrapped)
        raise
    else:
        coordinator.task_ended(state, TaskPhase.FINISHED, None)


def _start(coordinator: Coordinator, state: TaskState, task: Mapping[str, Any]) -> None:
    name = f"{state.role}_start_task"
    _ask(coordinator, state, {"name": name, "task_info": task}, "start_timeout_s")


def _ask(
    coordinator: Coordinator,
    state: TaskState,
    data: Mapping[str, Any],
    timeout_key: str = "answer_timeout_s",
) -> Mapping[str, Any]:
    """Ask the task's worker; how long it may take is a key of the coordinator's section."""
    assert state.worker is not None  # assigned before it is driven
    worker, timeout_s = state.worker, float(coordinator.cfg[timeout_key])
    try:
        return coordinator.master.ask(worker.worker_id, data, timeout_s, worker.incarnation)
    except TaskTimeoutError as error:
        raise TaskTimeoutError(
            f"{error}, the limit of system.coordinator.{timeout_key}", **error.facts
        ) from error


def _acknowledge(coordinator: Coordinator, state: TaskState, report: Mapping[str, Any]) -> None:
    """Enter a payload once the buffer admits it; meanwhile the worker's own queue fills.

    No deadline: a collector waits as long as its learner needs, whose own deadlines hold. At
    the end of the run the payload is left unacknowledged.
    """
    rows = int(report["rows"])

    def may_go_on() -> bool:
        experience = coordinator.experience_of(state)
        return coordinator.is_ending or experience is None or experience.buffer.can_push(rows)

    while not coordinator.is_ending:
        # Another collector may take the room between the wait and the push.
        if coordinator.deal_with_collector_send_data(state, report):
            return
        with coordinator.condition:
            coordinator.condition.wait_for(may_go_on, WAIT_S)


def _wait_for_data(
    coordinator: Coordinator, state: TaskState, demand: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Wait until the buffer serves the demand; None: the task shall end."""
    batch_size = int(demand["batch_size"])

    def may_go_on() -> bool:
        experience = coordinator.experience_of(state)
        return (
            coordinator.is_ending or experience is None or experience.buffer.can_sample(batch_size)
        )

    while True:
        with coordinator.condition:
            coordinator.condition.wait_for(may_go_on, WAIT_S)
        if coordinator.is_ending:
            return None
        data = coordinator.deal_with_learner_get_data(state, demand)
        if data is not None or coordinator.experience_of(state) is None:
            return data
        with coordinator.condition:  # the buffer refused all the same; do not spin
            coordinator.condition.wait_for(lambda: coordinator.is_ending, 0.05)
