"""The tasks of an earlier coordinator, whose workers may rejoin with them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dingsdk.errors import WorkerLostError
from dingsdk.worker.comm.transport import LEFT, WorkerInfo
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState


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
