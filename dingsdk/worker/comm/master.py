"""The master: tracks the joined workers, sends them tasks, and reports lost workers."""

from __future__ import annotations

import enum
import itertools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import (
    DingError,
    TaskFailedError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.plugins import observe
from dingsdk.runtime import checked_timeout
from dingsdk.worker.comm.scheduler import Condition, Scheduler
from dingsdk.worker.comm.transport import (
    STOPPED_S,
    MasterEnd,
    MasterListener,
    TaskAnswer,
    TaskMessage,
    WorkerInfo,
)

_log = logging.getLogger(__name__)

Callback = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


class TaskStatus(enum.Enum):
    """The status of a task; the last three are final."""

    IDLE = "idle"
    STARTED = "started"
    START_FAILED = "start_failed"
    COMPLETED = "completed"
    FAILED = "failed"


_FINAL = (TaskStatus.START_FAILED, TaskStatus.COMPLETED, TaskStatus.FAILED)
"""The status of a task never changes after one of these."""


class Task:
    """Handle of one task; created by ``Master.new_task``.

    Attributes:
        result: The worker's result; None before its answer.
        error: The error, if ``status`` is FAILED or START_FAILED.
    """

    def __init__(
        self,
        task_id: str,
        worker_id: str,
        data: Mapping[str, Any],
        send: Callable[[Task], None],
        condition: Condition,
        clock: Callable[[], float],
    ) -> None:
        self.task_id = task_id
        self.worker_id = worker_id
        self.task = data
        self.status = TaskStatus.IDLE
        self.result: Mapping[str, Any] | None = None
        self.error: DingError | None = None
        self._send = send
        self._condition = condition
        self._clock = clock
        self._callbacks: list[tuple[TaskStatus, Callback]] = []

    def start(self) -> Task:
        """Send the task. Raise ValueError if it was started before."""
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
        """Wait until the task has ended.

        The wait begins again if this process was stopped during it, and maybe the worker with it.

        Raises:
            TaskTimeoutError: it did not end within ``timeout_s``.
        """
        timeout_s = checked_timeout(timeout_s)
        with self._condition:
            began_at = self._clock()
            while not self._condition.wait_for(lambda: self.status in _FINAL, timeout_s):
                now = self._clock()
                if now - began_at - timeout_s > STOPPED_S:
                    began_at = now
                    continue
                raise TaskTimeoutError(
                    f"task {self._name} on worker {self.worker_id} gave no answer within "
                    f"{timeout_s:.1f} s",
                    task=self._name,
                    worker_id=self.worker_id,
                    timeout_s=timeout_s,
                )
        return self

    def value(self, timeout_s: float) -> Mapping[str, Any]:
        """Wait until the task has ended; return the result or raise the task's error."""
        self.join(timeout_s)
        if self.error is not None:
            raise self.error
        assert self.result is not None  # a completed task has one
        return self.result

    def on_complete(self, callback: Callback) -> Task:
        """Call ``callback(data, result)`` when the task completes, or now if it already has."""
        return self._add(callback, TaskStatus.COMPLETED)

    def on_fail(self, callback: Callback) -> Task:
        """Call ``callback(data, result)`` when the task fails, or now if it already has."""
        return self._add(callback, TaskStatus.FAILED)

    def answered(self, answer: TaskAnswer) -> None:
        """Process the worker's answer (called by the master)."""
        if answer.completed:
            self._finish(TaskStatus.COMPLETED, answer.result, None)
            return
        error = TaskFailedError(
            f"task {self._name} failed on worker {self.worker_id}: {answer.message}",
            worker_id=self.worker_id,
            task=self._name,
            result=dict(answer.result),
            traceback=answer.traceback,
        )
        self._finish(TaskStatus.FAILED, answer.result, error)

    def fail(self, error: DingError) -> None:
        """End the task with an error (called by the master)."""
        self._finish(TaskStatus.FAILED, {}, error)

    @property
    def _name(self) -> str:
        return str(self.task.get("name", self.task_id))

    def _add(self, callback: Callback, status: TaskStatus) -> Task:
        with self._condition:
            self._callbacks.append((status, callback))
            is_late = self.status is status
        if is_late:
            callback(self.task, self.result or {})
        return self

    def _finish(
        self, status: TaskStatus, result: Mapping[str, Any], error: DingError | None
    ) -> None:
        with self._condition:
            if self.status in _FINAL:
                return  # an answer that arrives after the task was given up is ignored
            self.status, self.result, self.error = status, result, error
            callbacks = [callback for when, callback in self._callbacks if when is status]
            self._condition.notify_all()
        for callback in callbacks:
            callback(self.task, result)


class Master(MasterListener):
    """Keeps track of workers and open tasks, over any transport's master end.

    Args:
        on_join: Called with each worker that joins.
        on_renew: Called with (worker_id) at every renewal, which workers send as long as their
            work makes progress.
        on_lost: Called with (worker, reason) once per lost worker, after its tasks failed; the
            worker may have rejoined by then, as another incarnation.
        lease_s: Length of the lease, sent to workers when they join. The master does not enforce
            it; its owner calls ``lose``.

    Thread safety: every method may be called from any thread. Callbacks run on the thread
    of the event, without any lock.
    """

    def __init__(
        self,
        end: MasterEnd,
        scheduler: Scheduler,
        *,
        on_join: Callable[[WorkerInfo], None] = lambda worker: None,
        on_renew: Callable[[str], None] = lambda worker_id: None,
        on_lost: Callable[[WorkerInfo, str], None] = lambda worker, reason: None,
        lease_s: float | None = None,
    ) -> None:
        self._end = end
        end.lease_s = None if lease_s is None or math.isinf(lease_s) else lease_s
        self._scheduler = scheduler
        self._condition = scheduler.condition()
        self._on_join, self._on_renew, self._on_lost = on_join, on_renew, on_lost
        self._workers: dict[str, WorkerInfo] = {}
        self._lost_for: dict[str, str] = {}  # why each id was lost the last time
        self._open: dict[str, dict[str, Task]] = {}
        """Unanswered tasks by task id, for each joined worker."""
        self._numbers = itertools.count(1)
        self.address = ""

    def start(self) -> str:
        """Accept workers; return the address that they connect to."""
        self.address = self._end.open(self)
        return self.address

    @property
    def workers(self) -> dict[str, WorkerInfo]:
        """The joined workers by id."""
        with self._condition:
            return dict(self._workers)

    def new_task(
        self, worker_id: str, data: Mapping[str, Any], incarnation: int | None = None
    ) -> Task:
        """Return an unsent task for a worker, only for ``incarnation`` if one is given."""
        return Task(
            f"t{next(self._numbers)}",
            worker_id,
            data,
            lambda task: self._send(task, incarnation),
            # A condition per task, so that an answer wakes only the callers that wait for it.
            self._scheduler.condition(),
            self._scheduler.clock,
        )

    def ask(
        self,
        worker_id: str,
        data: Mapping[str, Any],
        timeout_s: float,
        incarnation: int | None = None,
    ) -> Mapping[str, Any]:
        """Send a task and wait for its result; arguments as ``new_task``.

        Raises:
            TaskFailedError: the task's code raised; the error has the worker's traceback as a fact.
            WorkerLostError: the worker left or became silent first.
            TaskTimeoutError: no answer within ``timeout_s``.
        """
        return self.new_task(worker_id, data, incarnation).start().value(timeout_s)

    def lose(self, worker_id: str, reason: str, incarnation: int | None = None) -> None:
        """Give up a worker: fail its open tasks and refuse its later messages.

        If an incarnation is given, a later incarnation of the worker stays.
        """
        with self._condition:
            worker = self._workers.get(worker_id)
        if worker is not None and incarnation in (None, worker.incarnation):
            self._end.drop(worker_id, worker.incarnation, reason)
            self._forget(worker, reason)

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail all open tasks, and close the transport's end."""
        for worker in self.workers.values():
            self._forget(worker, "the master closed", announce=False)
        self._end.close(timeout_s)

    # MasterListener: called by the transport.
    def worker_joined(self, info: WorkerInfo) -> None:
        # If its earlier incarnation is still known, another thread is just dropping it.
        self.worker_left(info.worker_id, "it joined again")
        with self._condition:
            self._workers[info.worker_id] = info
            self._open[info.worker_id] = {}
        self._on_join(info)

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        self._on_renew(worker_id)

    def worker_left(self, worker_id: str, reason: str) -> None:
        with self._condition:
            worker = self._workers.get(worker_id)
        if worker is not None:
            self._forget(worker, reason)

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        with self._condition:
            task = self._open.get(worker_id, {}).pop(answer.task_id, None)
        if task is None:
            _log.warning("worker %s answered task %r, not its own", worker_id, answer.task_id)
            return
        # An answer does not renew the lease: a worker whose work hangs still answers that it has
        # nothing to report.
        task.answered(answer)

    def _send(self, task: Task, incarnation: int | None) -> None:
        with self._condition:
            worker = self._workers.get(task.worker_id)
            if worker is None or incarnation not in (None, worker.incarnation):
                # A worker that rejoined does not have its old work any more.
                raise _lost(task.worker_id, self._lost_for.get(task.worker_id, "it never joined"))
            tasks = self._open[task.worker_id]
            tasks[task.task_id] = task
        try:
            message = TaskMessage(task.task_id, task.task)
            self._end.send(task.worker_id, worker.incarnation, message)
        except WorkerLostError:
            # The end noticed the loss first; its report will fail the task, with the reason.
            _log.debug("worker %s left before task %s", task.worker_id, task.task_id)
        except DingError:
            with self._condition:
                tasks.pop(task.task_id, None)
            raise

    def _forget(self, worker: WorkerInfo, reason: str, *, announce: bool = True) -> None:
        worker_id = worker.worker_id
        with self._condition:
            if self._workers.get(worker_id) is not worker:
                return
            del self._workers[worker_id]
            orphans = self._open.pop(worker_id)
            self._lost_for[worker_id] = reason
        for task in orphans.values():
            task.fail(_lost(worker_id, reason))
        if announce:
            observe().connection_lost(worker_id=worker_id, reason=reason)
            self._on_lost(worker, reason)


def _lost(worker_id: str, reason: str) -> WorkerLostError:
    return WorkerLostError(
        f"worker {worker_id!r} is lost: {reason}", worker_id=worker_id, reason=reason
    )
