"""A task that a master sent to a worker, as the sender sees it."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import DingError, TaskFailedError, TaskTimeoutError
from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.comm.transport import TaskAnswer

Callback = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


class TaskStatus(enum.Enum):
    IDLE = "idle"
    STARTED = "started"
    START_FAILED = "start_failed"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (TaskStatus.START_FAILED, TaskStatus.COMPLETED, TaskStatus.FAILED)


class Task:
    """Handle of one task; made by ``Master.new_task``.

    Attributes:
        task: The data that the worker gets.
        status: Where it stands.
        result: The worker's answer; None before.
        error: What went wrong, once ``status`` is FAILED or START_FAILED.
    """

    def __init__(
        self,
        task_id: str,
        worker_id: str,
        data: Mapping[str, Any],
        send: Callable[[Task], None],
        condition: Condition,
    ) -> None:
        self.task_id = task_id
        self.worker_id = worker_id
        self.task = data
        self.status = TaskStatus.IDLE
        self.result: Mapping[str, Any] | None = None
        self.error: DingError | None = None
        self._send = send
        self._condition = condition
        self._on_complete: list[Callback] = []
        self._on_fail: list[Callback] = []

    def start(self) -> Task:
        """Send the task. Only from IDLE, else ValueError."""
        if self.status is not TaskStatus.IDLE:
            raise ValueError(f"task {self.task_id} was started before: {self.status.value}")
        self.status = TaskStatus.STARTED
        try:
            self._send(self)
        except DingError as error:
            self._finish(TaskStatus.START_FAILED, {}, error)
            raise
        return self

    def join(self, timeout_s: float) -> Task:
        """Wait until the worker reported.

        Raises:
            TaskTimeoutError: it did not within ``timeout_s``.
        """
        started = time.monotonic()
        with self._condition:
            if not self._condition.wait_for(lambda: self.status.is_final, timeout_s):
                raise TaskTimeoutError(
                    f"task {self._name} on worker {self.worker_id} gave no answer within "
                    f"{timeout_s:.1f} s",
                    task=self._name,
                    worker_id=self.worker_id,
                    timeout_s=time.monotonic() - started,
                )
        return self

    def value(self, timeout_s: float) -> Mapping[str, Any]:
        """Wait, and return the result or raise the task's error."""
        self.join(timeout_s)
        if self.error is not None:
            raise self.error
        assert self.result is not None  # a completed task has one
        return self.result

    def on_complete(self, callback: Callback) -> Task:
        """Call ``callback(data, result)`` when the task completed, at once if it has."""
        return self._add(callback, self._on_complete, TaskStatus.COMPLETED)

    def on_fail(self, callback: Callback) -> Task:
        """Call ``callback(data, result)`` when the task failed, at once if it has."""
        return self._add(callback, self._on_fail, TaskStatus.FAILED)

    def answered(self, answer: TaskAnswer) -> None:
        """Take the worker's answer (called by the master)."""
        if answer.completed:
            self._finish(TaskStatus.COMPLETED, answer.result, None)
            return
        self.fail(
            TaskFailedError(
                f"task {self._name} failed on worker {self.worker_id}: {answer.message}",
                worker_id=self.worker_id,
                task=self._name,
                result=dict(answer.result),
                traceback=answer.traceback,
            ),
            answer.result,
        )

    def fail(self, error: DingError, result: Mapping[str, Any] | None = None) -> None:
        """End the task with an error (called by the master)."""
        self._finish(TaskStatus.FAILED, result or {}, error)

    @property
    def _name(self) -> str:
        return str(self.task.get("name", self.task_id))

    def _add(self, callback: Callback, callbacks: list[Callback], status: TaskStatus) -> Task:
        with self._condition:
            callbacks.append(callback)
            is_late = self.status is status
        if is_late:
            callback(self.task, self.result or {})
        return self

    def _finish(
        self, status: TaskStatus, result: Mapping[str, Any], error: DingError | None
    ) -> None:
        with self._condition:
            if self.status.is_final:
                return  # an answer that comes after the task was given up changes nothing
            self.status, self.result, self.error = status, result, error
            callbacks = list(self._on_complete if status is TaskStatus.COMPLETED else self._on_fail)
            self._condition.notify_all()
        for callback in callbacks:
            callback(self.task, result)
