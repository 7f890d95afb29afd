"""The slave: serves a master's tasks, one at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dingsdk.errors import (
    ClosedError,
    DingError,
    ProtocolError,
    TaskFail,
    WorkerLostError,
    error_text,
    traceback_text,
)
from dingsdk.plugins import observe
from dingsdk.worker.comm.scheduler import Job
from dingsdk.worker.comm.transport import SlaveEnd, TaskAnswer, TaskMessage, Transport, WorkerInfo

_log = logging.getLogger(__name__)

TaskFunctions = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]
"""Task name -> function of the task's data; returns the result."""

JOIN_TIMEOUT_S = 60.0
"""How long a worker tries to join or to rejoin, by default."""
CLOSE_TIMEOUT_S = 5.0
"""How long a worker's job may take to stop, by default."""
POLL_S = 1.0
"""Longest wait for a task; it is shorter if the lease must be renewed earlier."""
RENEWALS = 3
"""Renewals per lease, so that one or two may be late."""
RENEW_S = 1.0
"""Seconds between renewals if the master does not send the length of the lease."""


class Slave:
    """Joins a master, processes its tasks in order and answers each.

    Tasks are the functions in ``callback_fn``; a subclass may override ``_process_task``
    instead. If a task raises an error, it is answered as failed: ``TaskFail`` with its result,
    any other error with its traceback. The slave then continues.

    The lease is renewed between tasks and while idle. Answers do not renew it.
    """

    def __init__(
        self,
        transport: Transport,
        info: WorkerInfo,
        *,
        callback_fn: TaskFunctions | None = None,
    ) -> None:
        self.info = info
        self.transport = transport
        self.scheduler = transport.scheduler
        self.rejoin_s = JOIN_TIMEOUT_S
        """Seconds to try to rejoin after the master was lost."""
        self.failure: Exception | None = None
        """Why it stopped serving, if neither side closed."""
        self.tasks_done = 0
        """Number of tasks that it has answered."""
        self._callbacks = dict(callback_fn or {})
        self._clock = self.scheduler.clock
        self._end: SlaveEnd | None = None
        self._serving: Job | None = None
        self._is_closed = True
        self._progress = 0
        self._renewed_at = -float("inf")

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or its master is gone for good: no more tasks will come."""
        return self._is_closed or (self._serving is not None and self._serving.done)

    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master at ``address`` and serve from then on.

        Raises:
            WorkerLostError: no master answered within ``timeout_s``.
        """
        self._is_closed = False
        self._end = self.transport.slave_end(address)
        self._end.join(self.info, timeout_s)
        self._serving = self.scheduler.spawn(self._serve, f"{self.info.worker_id}-tasks")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop serving and leave; return whether the serving loop ended in time. Idempotent."""
        self._is_closed = True
        if self._end is not None:
            self._end.close(timeout_s)
        return self._serving is None or self._serving.join(timeout_s)

    def renew(self) -> None:
        """Renew the lease if it is due and the work is alive.

        Raises:
            WorkerLostError: the master gave up this worker.
            ClosedError: the master ended.
        """
        end = self._joined()
        end.check()
        now = self._clock()
        if now - self._renewed_at >= self._renewal_s and self._is_alive(now):
            end.renew(self._progress)
            self._renewed_at = now

    def _process_task(self, task: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Process one task; return the result (None: an empty result).

        Raises:
            TaskFail: to fail the task with a result.
        """
        callback = self._callbacks.get(task.get("name", ""))
        if callback is None:
            raise TaskFail({"message": "task name error"}, f"unknown task {task.get('name')!r}")
        return callback(task)

    def _is_alive(self, now: float) -> bool:
        """Return whether the work makes progress, so that the lease is to be renewed."""
        return True

    def _kept_task(self) -> Mapping[str, Any] | None:
        """Return the ids of the task to continue after the master was lost; None for no task."""
        return None

    def _ended_task(self) -> Mapping[str, Any] | None:
        """Return the ids of the last task if its work is over; None for no task.

        A restarted master may still wait for this worker to continue it.
        """
        return None

    def _stop_work(self) -> bool:
        """End the work after the master gave up this worker; return whether it may rejoin."""
        return True

    @property
    def _renewal_s(self) -> float:
        lease_s = self._joined().lease_s
        return RENEW_S if lease_s is None else lease_s / RENEWALS

    def _joined(self) -> SlaveEnd:
        assert self._end is not None  # start() comes first
        return self._end

    def _serve(self) -> None:
        end = self._joined()
        while not self._is_closed:
            try:
                task = end.next_task(min(POLL_S, self._renewal_s))
                if task is not None:
                    self._answer(self._run(task))
                self.renew()
            except ClosedError:
                return
            except WorkerLostError as error:
                _log.warning("%s", error)
                if not self._join_again(error):
                    return
            except Exception as error:
                # An error of the transport, as errors of tasks are answered. It is stored, because
                # the master only sees that this worker is silent.
                _log.debug("%s serves no more", self.info.worker_id, exc_info=True)
                self.failure = error
                return
            except BaseException as error:
                # Such as a panic of an env that is written in Rust.
                self.failure = DingError(f"{self.info.worker_id} ended with {error_text(error)}")
                self.failure.__cause__ = error
                raise

    def _answer(self, answer: TaskAnswer) -> None:
        if self._is_closed:
            return
        end = self._joined()
        try:
            end.answer(answer)
        except ProtocolError as error:
            # A result that cannot be sent only fails its task.
            end.answer(TaskAnswer(answer.task_id, False, {}, str(error), traceback_text(error)))

    def _join_again(self, lost: WorkerLostError) -> bool:
        task = None
        if lost.facts.get("restarted") or lost.facts.get("silent"):
            task = self._kept_task()
        why = "" if task is not None or self._stop_work() else "has work that does not end"
        if not why and lost.facts.get("replaced"):
            # Do not join again: two workers with one id would evict each other and lose tasks.
            why = "has lost its id to another worker"
        if why:
            _log.error("%s %s; it stays away", self.info.worker_id, why)
            self.failure = lost
            return False
        if task is None and (ended := self._ended_task()) is not None:
            task = {**ended, "is_over": True}
        info = self.info
        if task is not None:
            info = replace(info, resource={**info.resource, "task": task})
        try:
            self._joined().join(info, self.rejoin_s)
        except ClosedError:
            return False
        except DingError as error:
            self.failure = error
            return False
        self._renewed_at = self._clock()
        return True

    def _run(self, task: TaskMessage) -> TaskAnswer:
        worker_id, observers = self.info.worker_id, observe()
        observers.before_task(worker_id=worker_id, task=task.data)
        try:
            result = self._process_task(task.data)
            answer = TaskAnswer(task.task_id, True, {} if result is None else result)
        except TaskFail as failure:
            answer = TaskAnswer(task.task_id, False, failure.facts["result"], str(failure))
        except WorkerLostError:
            raise  # not a failure of the task: another worker gets it
        except (Exception, SystemExit) as error:
            # An exit would only end this loop, and the master would wait for an answer.
            _log.debug("task %s raised on %s", task.data.get("name"), worker_id, exc_info=True)
            result = {"is_user_mistake": getattr(error, "is_user_mistake", False)}
            message, text = error_text(error), traceback_text(error)
            answer = TaskAnswer(task.task_id, False, result, message, text)
        self.tasks_done += 1
        observers.after_task(worker_id=worker_id, task=task.data, outcome=answer)
        return answer
