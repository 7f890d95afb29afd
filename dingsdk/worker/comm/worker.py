"""A worker with one long job, such as a collector's loop, and tasks that control it."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import torch

from dingsdk.config import Configurable, PartSection, Positive
from dingsdk.errors import ClosedError, TaskFail, WorkerLostError
from dingsdk.worker.comm.allowed_imports import check_imports
from dingsdk.worker.comm.scheduler import Job
from dingsdk.worker.comm.slave import CLOSE_TIMEOUT_S, POLL_S, Slave, TaskFunctions
from dingsdk.worker.comm.transport import PolicyStore, StepDataStore, Transport, WorkerInfo

_log = logging.getLogger(__name__)

FENCE = 0.8
"""The job pauses after this share of the lease has passed without a renewal."""
ANSWER_WITHIN_S = 2.0
"""How long a task waits for something to report before it answers "nothing yet"."""
REPLAY_WAIT_S, REPLAY_PAUSE_S = 1.0, 0.05
"""How long one call waits for a replay server's limiter (and thus how long stopping may take), and
the pause before the next call."""


def _nothing() -> None:
    pass


class CommWorker(Configurable, Slave, ABC):
    """A slave that runs at most one job for the tasks of its master.

    The lease is renewed while the job makes progress, while it waits in ``job_wait`` (the delay
    is not its fault), while it is built and while there is no job. If a job hangs elsewhere,
    renewals stop after ``progress_timeout_s``, and the master gives up the worker. If most of the
    lease has passed without a renewal (the host slept, or the master cannot be reached), the job
    pauses before the master gives its task to another worker. It continues if the master, or a
    restarted master, still assigns the task to this worker.

    Args:
        cfg: The worker's section; ``progress_timeout_s`` is the longest time without progress of
            a job that counts as alive.
    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section of a worker.

        Attributes:
            allowed_modules: Modules that tasks may import, besides those named in the local config.
            progress_timeout_s: Seconds without progress after which a job counts as hung.
        """

        allowed_modules: list[str] = msgspec.field(default_factory=list)
        progress_timeout_s: Positive = 60.0

    role: ClassVar[str]
    """Name of the worker's role."""

    def __init__(self, cfg: Mapping[str, Any], transport: Transport, worker_id: str) -> None:
        self._cfg = self.read(cfg)
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        info = WorkerInfo(worker_id, self.role, {"cpu": os.cpu_count() or 1, "gpu": gpus})
        super().__init__(transport, info, callback_fn=self._tasks())
        self.run_dir = transport.run_dir
        self.condition = self.scheduler.condition()
        """Guards the state that the job and the tasks share."""
        self.is_stopping = False
        self.storage_timeout_s = 0.0
        """How long a checkpoint waits for room; set by the run."""
        self._task_info: Mapping[str, Any] = {}
        self._job: Job | None = None
        self._stop: Callable[[], None] = _nothing
        self._has_ended = False
        self._job_error: BaseException | None = None
        self._has_kept_job = False
        """Whether the job was begun for an earlier master, and the new one has not continued it
        yet."""
        self._waiting = 0
        self._moved_at = self._job_started_at = -float("inf")

    # When they are first used, as a transport may find its stores only once the worker has joined.
    @cached_property
    def data_store(self) -> StepDataStore:
        """The transport's store for payloads."""
        return self.transport.data_store()

    @cached_property
    def policy_store(self) -> PolicyStore:
        """The transport's store for policies."""
        return self.transport.policy_store()

    @abstractmethod
    def _tasks(self) -> TaskFunctions:
        """Return the tasks by name; called by the constructor."""

    def deal_with_resource(self) -> Mapping[str, Any]:
        """Return the resources of the host."""
        return self.info.resource

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the job, then leave; return whether both ended in time. Idempotent."""
        # No more answers: the unfinished work of the job must not become the task's result, as
        # another worker gets the task.
        self._is_closed = True
        self.stop_job(timeout_s)
        # The last task may have started a job in between.
        return super().close(timeout_s) and self.stop_job(timeout_s)

    @property
    def has_job(self) -> bool:
        """Whether a job was started and not stopped yet."""
        return self._job is not None

    @property
    def job_ended(self) -> bool:
        """Whether the job returned or raised by itself."""
        return self._job is not None and self._has_ended

    @contextmanager
    def building(self, task_info: Mapping[str, Any]) -> Iterator[None]:
        """Accept a task, and renew the lease while the caller builds the objects for its job.

        Building may take longer than the lease. It is limited by the master's deadline for the
        task: after that the master gives up the worker, and renewals end.

        Raises:
            TaskFail: a job is running already.
            UntrustedImportError: the task names modules that this worker's config does not.
            WorkerLostError: a job of an earlier task hangs; this worker leaves.
        """
        # The kept job's task was given to another worker.
        if self._has_kept_job and not self.stop_job():
            worker_id = self.info.worker_id
            raise WorkerLostError(f"earlier work of {worker_id} hangs", worker_id=worker_id)
        if self._job is not None:
            raise TaskFail({"message": "busy"}, f"{self.info.worker_id} runs {self._job.name}")
        check_imports(task_info, self._cfg.allowed_modules)
        self._task_info = task_info
        is_built = False

        def renew() -> None:
            with self.condition:
                while not self.condition.wait_for(lambda: is_built, self._renewal_s):
                    self._call_unlocked(self.renew)

        job = self.scheduler.spawn(renew, f"{self.info.worker_id}-renewals")
        try:
            yield
        finally:
            with self.condition:
                is_built = True
                self.condition.notify_all()
            job.join(CLOSE_TIMEOUT_S)

    def go_on_with_job(self, task_id: str) -> None:
        """Continue a job that was begun for an earlier master.

        Raises:
            TaskFail: the job is of another task, or there is none.
        """
        if self._job is None or self._task_info.get("task_id") != task_id:
            raise TaskFail({"message": "no such task"}, f"{self.info.worker_id} has no {task_id}")
        self._has_kept_job = False

    def task_ids(self) -> dict[str, Any]:
        """Return ``task_id`` and ``buffer_id`` of the task, which every answer contains."""
        info = self._task_info
        return {"task_id": info.get("task_id"), "buffer_id": info.get("buffer_id")}

    def start_job(self, run: Callable[[], None], stop: Callable[[], None], name: str) -> None:
        """Run ``run`` as this worker's job; ``stop``, called from any thread, makes it return soon.

        Call it after ``building``, as a worker runs one job at a time.
        """
        self.is_stopping = False
        self._has_ended, self._job_error = False, None
        self._job_started_at = self._clock()
        self.advance()
        self._stop = stop
        self._job = self.scheduler.spawn(lambda: self._run_job(run), name)

    def stop_job(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Tell the job to stop and wait for it; return whether it ended in time."""
        job = self._job
        if job is None:
            return True
        self._stop()
        with self.condition:
            self.is_stopping = True
            self.condition.notify_all()
        if not job.join(timeout_s):
            return False
        self._stop = _nothing  # it may hold all objects of the job
        self._job = None
        self._has_kept_job = False
        return True

    def raise_job_error(self) -> None:
        """Raise the last job's error, if any, so that the current task fails with it."""
        if self._job_error is not None:
            raise self._job_error

    def advance(self) -> None:
        """Record progress of the job; called once per round of its loop.

        If the lease was not renewed for too long, it waits until the lease is renewed, or until
        the job must stop because another worker has the task.
        """
        self._note_round()
        # A cooperative job that took this long has blocked the master as well.
        if self.scheduler.is_cooperative or self.is_stopping or not self._is_overdue():
            return
        text = "%s could not renew its lease of %s s in time; it waits for the coordinator"
        _log.warning(text, self.info.worker_id, self._joined().lease_s)
        with self.condition:
            self.job_wait(lambda: not self._is_overdue())

    def _note_round(self) -> None:
        self._progress += 1
        self._moved_at = self._clock()

    def _is_overdue(self) -> bool:
        lease_s = self._joined().lease_s
        if lease_s is None:
            return False
        return self._clock() - max(self._renewed_at, self._job_started_at) > FENCE * lease_s

    def yield_turn(self) -> None:
        """Record progress and let other jobs run."""
        self.advance()
        self.scheduler.yield_turn()

    def job_wait(
        self, predicate: Callable[[], bool], meanwhile: Callable[[], None] = _nothing
    ) -> bool:
        """Wait within the job until ``predicate()`` is true; False: the job must stop now.

        Call it with the condition held. It has no deadline: ``stop_job`` ends it, and the job's
        task has a deadline. ``meanwhile`` is called regularly, without the condition.
        """
        self._waiting += 1
        try:
            while not self.condition.wait_for(
                lambda: self.is_stopping or predicate(), ANSWER_WITHIN_S
            ):
                self._call_unlocked(meanwhile)
        finally:
            self._waiting -= 1
            self._note_round()
        return not self.is_stopping

    def pause(self, seconds: float, until: Callable[[], bool] = bool) -> None:
        """Wait within the job for a time, or until ``until()`` is true or the job must stop.

        Call it without the condition.
        """
        with self.condition:
            self._waiting += 1
            try:
                self.condition.wait_for(lambda: self.is_stopping or until(), seconds)
            finally:
                self._waiting -= 1
        self.advance()

    def task_wait(
        self, predicate: Callable[[], bool], timeout_s: float, *, outlasts_job: bool = False
    ) -> None:
        """Wait within a task, with the condition held, until the job makes ``predicate()`` true.

        Renews the lease while waiting. Ends after ``timeout_s``, and when the job ends, unless
        ``outlasts_job``.
        """
        left, deadline = timeout_s, self._clock() + timeout_s
        while not self.condition.wait_for(
            lambda: predicate() or self.is_stopping or (self.job_ended and not outlasts_job),
            max(0.0, min(left, POLL_S, self._renewal_s)),
        ):
            if left <= 0:
                return
            # Renewing may wait for the master, and stopping the job needs the condition.
            self._call_unlocked(self.renew)
            left = deadline - self._clock()

    def _is_alive(self, now: float) -> bool:
        is_idle = self._job is None or self.job_ended or self._waiting > 0
        return is_idle or now - self._moved_at < self._cfg.progress_timeout_s

    def _kept_task(self) -> Mapping[str, Any] | None:
        if self._job is None or self.job_ended or self.is_stopping:
            return None
        self._has_kept_job = True
        return self._assigned()

    def _ended_task(self) -> Mapping[str, Any] | None:
        return self._assigned() if self._task_info else None

    def _assigned(self) -> Mapping[str, Any]:
        return {key: self._task_info.get(key) for key in ("task_id", "payload_prefix")}

    def _stop_work(self) -> bool:
        return self.stop_job()

    def _call_unlocked(self, function: Callable[[], None]) -> None:
        self.condition.__exit__(None, None, None)
        try:
            function()
        finally:
            self.condition.__enter__()

    def _run_job(self, run: Callable[[], None]) -> None:
        # torch's limit is per thread, and a new OpenMP thread starts with all cores: workers that
        # run at the same time then wait for each other (5 times slower, 2026-11, 2 cores).
        torch.set_num_threads(torch.get_num_threads())
        try:
            run()
        except BaseException as error:
            if isinstance(error, ClosedError) and self.is_stopping:
                return
            self._job_error = error
            raise
        finally:
            # Nothing else would wake a task that waits for the job.
            with self.condition:
                self._has_ended = True
                self.condition.notify_all()
