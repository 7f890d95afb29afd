"""The slave: serves a master's tasks, one at a time."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import ClosedError, DingError, ProtocolError, TaskFail, WorkerLostError
from dingsdk.plugins import observe
from dingsdk.worker.comm.scheduler import Job, Scheduler
from dingsdk.worker.comm.transport import SlaveEnd, TaskAnswer, TaskMessage, WorkerInfo

_log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 60.0
POLL_S = 1.0


class Slave:
    """Joins a master, processes its tasks in order and answers each.

    A subclass overrides ``_process_task``, or names its tasks in ``callback_fn``. Whatever
    a task raises is answered as a failed task: ``TaskFail`` with its result, anything else
    with its traceback. The slave serves on.

    Args:
        end: The transport's end.
        scheduler: What serving runs on.
        info: Who this worker is.
        callback_fn: Task name -> function of the task's data.
        renew: Called between tasks and while idle; renews the lease if the work is alive.
            Answers renew nothing, so that a master with a lease gives a worker without it up.
        on_lost: Called when the master gave this worker up; ends its work, and returns
            whether it may join again.
    """

    def __init__(
        self,
        end: SlaveEnd,
        scheduler: Scheduler,
        info: WorkerInfo,
        *,
        callback_fn: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]
        | None = None,
        renew: Callable[[], None] | None = None,
        on_lost: Callable[[], bool] | None = None,
    ) -> None:
        self.info = info
        self._end = end
        end.asks_again = True
        self._scheduler = scheduler
        self._callbacks = dict(callback_fn or {})
        self._renew = renew
        self._on_lost = on_lost
        self._job: Job | None = None
        self._is_closed = False
        self.failure: DingError | None = None
        """Why it serves no more, where neither side closed."""

    @property
    def is_over(self) -> bool:
        """Whether it has served, and will not again."""
        return self._job is not None and self._job.done

    def start(self, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master and serve from then on.

        Raises:
            WorkerLostError: no master answered within ``timeout_s``.
        """
        self._end.join(self.info, timeout_s)
        self._job = self._scheduler.spawn(self._serve, f"{self.info.worker_id}-tasks")

    def retire(self) -> None:
        """Take no more tasks and answer none; the master hears that it left by ``close``."""
        self._is_closed = True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop serving and leave; return whether the serving loop ended in time. Idempotent."""
        self.retire()
        self._end.close(timeout_s)
        return self._job is None or self._job.join(timeout_s)

    def _process_task(self, task: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Process one task; return the result (None: an empty one).

        Raises:
            TaskFail: to fail the task with a result.
        """
        callback = self._callbacks.get(task.get("name", ""))
        if callback is None:
            raise TaskFail({"message": "task name error"}, f"unknown task {task.get('name')!r}")
        return callback(task)

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                task = self._end.next_task(POLL_S)
                if task is not None:
                    self._answer(self._run(task))
                if self._renew is not None:
                    self._renew()
            except ClosedError:
                return
            except WorkerLostError as error:
                _log.warning("%s", error)
                if not self._join_again(error):
                    return

    def _answer(self, answer: TaskAnswer) -> None:
        if self._is_closed:
            return
        try:
            self._end.answer(answer)
        except ProtocolError as error:
            # A result that cannot travel fails its task, and nothing else.
            text = "".join(traceback.format_exception(error))
            self._end.answer(TaskAnswer(answer.task_id, False, message=str(error), traceback=text))

    def _join_again(self, lost: WorkerLostError) -> bool:
        if self._on_lost is not None and not self._on_lost():
            _log.error("%s has work that does not end; it stays away", self.info.worker_id)
            self.failure = lost
            return False
        if lost.facts.get("replaced"):
            # It would take the id back, and lose it again, with a task each time.
            _log.error("%s: its id is another worker's now; it stays away", self.info.worker_id)
            self.failure = lost
            return False
        try:
            self._end.join(self.info, JOIN_TIMEOUT_S)
        except ClosedError:
            return False
        except DingError as error:
            self.failure = error
            return False
        return True

    def _run(self, task: TaskMessage) -> TaskAnswer:
        worker_id = self.info.worker_id
        observe().before_task(worker_id=worker_id, task=task.data)
        try:
            result = self._process_task(task.data)
            answer = TaskAnswer(task.task_id, True, {} if result is None else result)
        except TaskFail as failure:
            answer = TaskAnswer(task.task_id, False, failure.facts["result"], str(failure))
        except WorkerLostError:
            raise  # no failure of the task: it is for another worker
        except (Exception, SystemExit) as error:
            # An exit would end this loop alone, and the master would wait for an answer.
            _log.debug("task %s raised on %s", task.data.get("name"), worker_id, exc_info=True)
            answer = TaskAnswer(
                task.task_id,
                False,
                {"is_user_mistake": getattr(error, "is_user_mistake", False)},
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        observe().after_task(worker_id=worker_id, task=task.data, outcome=answer)
        return answer
