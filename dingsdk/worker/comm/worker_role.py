"""What comm collectors and comm learners share: a slave, one job, and a lease kept by progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from dingsdk.errors import ClosedError, DingError, TaskFail, WorkerLostError
from dingsdk.worker.comm.scheduler import Job
from dingsdk.worker.comm.slave import JOIN_TIMEOUT_S, Slave
from dingsdk.worker.comm.transport import Transport, WorkerInfo

CLOSE_TIMEOUT_S = 5.0
POLL_S = 1.0
RENEWALS = 3
"""Renewals in one lease, so that one or two may be late."""
FENCE = 0.8
"""Share of the lease without a renewal after which the job stops by itself."""
RENEW_S = 1.0
"""Interval of renewals where the master does not tell its lease."""
ANSWER_WITHIN_S = 2.0
"""How long a task that waits for something to report waits before it says "nothing yet"."""

Tasks = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]


class WorkerRole:
    """Runs at most one job (a collector's or learner's loop) for the tasks of one master.

    The lease is renewed while the job makes progress, while it waits in ``job_wait`` (it is
    not its fault then), while it is built and while there is none. A job that hangs elsewhere
    stops the renewal after ``progress_timeout_s``, and the master gives the worker up. One that
    goes on after most of a lease without renewal (the host slept, the master cannot be reached)
    stops by itself, before the master gives its task to another.

    Args:
        transport: What it is connected by.
        worker_id: Unique in the run.
        role: What it serves.
        tasks: Task name -> function of the task's data.
        progress_timeout_s: Longest step of the job that counts as alive.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        transport: Transport,
        worker_id: str,
        role: str,
        tasks: Tasks,
        *,
        progress_timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = WorkerInfo(worker_id, role, {"cpu": os.cpu_count() or 1, "gpu": _gpu_count()})
        self.data_store = transport.data_store()
        self.policy_store = transport.policy_store()
        self.scheduler = transport.scheduler
        self.condition = self.scheduler.condition()
        self.run_dir = transport.run_dir
        self._transport = transport
        self._tasks = tasks
        self._progress_timeout_s = progress_timeout_s
        self._clock = clock
        self._slave: Slave | None = None
        self._job: Job | None = None
        self._progress = 0
        self._waiting = 0
        self._moved_at = clock()
        self._renewed_at = self._fenced_from = -float("inf")
        self._stop: Callable[[], None] = _nothing
        self._has_ended = False
        self._job_error: BaseException | None = None
        self.is_stopping = False

    # Serving --------------------------------------------------------------------------------
    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master at ``address`` and serve its tasks."""
        self._end = self._transport.slave_end(address)
        self._slave = Slave(
            self._end,
            self.scheduler,
            self.info,
            callback_fn=self._tasks,
            renew=self.renew,
            on_lost=self.stop_job,
        )
        self._slave.start(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the job, then leave; return whether both ended in time. Idempotent."""
        if self._slave is None:
            return True
        # What the job leaves half done is for the task's next worker, no result of the task.
        self._slave.retire()
        self.stop_job(timeout_s)
        # The last task may have started a job meanwhile.
        return self._slave.close(timeout_s) and self.stop_job(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the master is gone for good, so that no task will come any more."""
        return self._slave is not None and self._slave.is_over

    @property
    def failure(self) -> DingError | None:
        """Why it is over, unless by a close."""
        return None if self._slave is None else self._slave.failure

    def renew(self) -> None:
        """Renew the lease, if the work is alive and it is time to.

        Raises:
            WorkerLostError, ClosedError: the master gave this worker up, or ended.
        """
        self._end.check()
        now = self._clock()
        if now - self._renewed_at < self._renewal_s:
            return
        is_idle = self._job is None or self.job_ended or self._waiting > 0
        if is_idle or now - self._moved_at < self._progress_timeout_s:
            self._end.renew(self._progress)
            self._renewed_at = self._fenced_from = now

    @property
    def _renewal_s(self) -> float:
        lease_s = self._end.lease_s
        return RENEW_S if lease_s is None else lease_s / RENEWALS

    @contextmanager
    def building(self) -> Iterator[None]:
        """Renew the lease while a task builds what its job needs, which may take longer than it.

        The master's deadline for the task bounds it: a worker that it gave up renews no more.
        """
        is_built = False

        def renew() -> None:
            with self.condition:
                while not self.condition.wait_for(lambda: is_built, self._renewal_s):
                    self._call_outside(self.renew)

        job = self.scheduler.spawn(renew, f"{self.info.worker_id}-renewals")
        try:
            yield
        finally:
            with self.condition:
                is_built = True
                self.condition.notify_all()
            job.join(CLOSE_TIMEOUT_S)

    # The job -----------------------------------------------------------------------------------
    @property
    def has_job(self) -> bool:
        return self._job is not None

    @property
    def job_ended(self) -> bool:
        return self._job is not None and self._has_ended

    def start_job(self, run: Callable[[], None], stop: Callable[[], None], name: str) -> None:
        """Run ``run`` as this worker's job; ``stop`` makes it return, at once and from anywhere.

        Raises:
            TaskFail: another job is running (a worker runs one at a time).
        """
        if self._job is not None:
            raise TaskFail({"message": "busy"}, f"{self.info.worker_id} runs {self._job.name}")
        self.is_stopping = False
        self._has_ended, self._job_error = False, None
        self._fenced_from = self._clock()
        self.advance()
        self._stop = stop
        self._job = self.scheduler.spawn(self._noticed(run), name)

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
        self._job = None
        return True

    def raise_job_error(self) -> None:
        """Raise what the last job raised, if it did, so that the current task fails with it."""
        if self._job_error is not None:
            raise self._job_error

    def advance(self) -> None:
        """Note that the job moved on; called once per round of its loop.

        Raises:
            WorkerLostError: its lease was not renewed for too long; another may have its task.
        """
        self._progress += 1
        self._moved_at = now = self._clock()
        lease_s, silent_s = self._end.lease_s, now - self._fenced_from
        # A cooperative job that took so long kept the master from noticing as well.
        if lease_s is None or self.scheduler.is_cooperative or silent_s <= FENCE * lease_s:
            return
        if not self.is_stopping:
            raise WorkerLostError(
                f"{self.info.worker_id} could not renew its lease of {lease_s} s for "
                f"{silent_s:.1f} s; it leaves its task to others",
                worker_id=self.info.worker_id,
            )

    def yield_turn(self) -> None:
        """Note progress and let others run."""
        self.advance()
        self.scheduler.yield_turn()

    def job_wait(
        self, predicate: Callable[[], bool], meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Wait within the job, condition held, until ``predicate()``; False: stop now.

        It has no deadline of its own: ``stop_job`` ends it, and the task that the job works
        for has one. ``meanwhile`` is called now and then, condition not held.
        """
        self._waiting += 1
        try:
            while not self.condition.wait_for(
                lambda: self.is_stopping or predicate(), ANSWER_WITHIN_S
            ):
                if meanwhile is not None:
                    self._call_outside(meanwhile)
        finally:
            self._waiting -= 1
            self.advance()
        return not self.is_stopping

    def pause(self, seconds: float) -> None:
        """Wait within the job, condition not held, until ``seconds`` are over or it shall stop."""
        with self.condition:
            self._waiting += 1
            try:
                self.condition.wait_for(lambda: self.is_stopping, seconds)
            finally:
                self._waiting -= 1
        self.advance()

    def task_wait(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Wait within a task, condition held, for the job to bring ``predicate()`` about.

        Keeps the lease renewed meanwhile. Returns False when the time is over; an ended job
        ends the wait as well.
        """
        deadline = self._clock() + timeout_s
        while True:
            left = deadline - self._clock()
            if self.condition.wait_for(
                lambda: predicate() or self.job_ended or self.is_stopping,
                max(0.0, min(left, POLL_S)),
            ):
                return predicate()
            if left <= 0:
                return False
            # Renewing may wait for the master, and whoever stops the job needs the condition.
            self._call_outside(self.renew)

    def _call_outside(self, function: Callable[[], None]) -> None:
        self.condition.__exit__(None, None, None)
        try:
            function()
        finally:
            self.condition.__enter__()

    def _noticed(self, function: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            # torch's limit is per thread, and a new thread of OpenMP starts with every core:
            # workers side by side then spin for each other (5 times slower, 2026-11, 2 cores).
            torch.set_num_threads(torch.get_num_threads())
            try:
                function()
            except BaseException as error:
                if isinstance(error, ClosedError) and self.is_stopping:
                    return
                self._job_error = error
                raise
            finally:
                # By itself nothing would wake the task that waits for what the job brings about.
                with self.condition:
                    self._has_ended = True
                    self.condition.notify_all()

        return run


class RoleLife:
    """Joining and leaving, for a comm worker that lives by a WorkerRole. Mix in first."""

    _role: WorkerRole
    _is_closed: bool

    def start(self, address: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Join the master at ``address``."""
        self._is_closed = False
        self._role.start(address, timeout_s)

    def close(self) -> None:
        """Stop the work and leave; idempotent, a no-op before ``start``."""
        if not self._is_closed:
            self._is_closed = True
            self._role.close()

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._role.is_over

    @property
    def failure(self) -> DingError | None:
        return self._role.failure

    def deal_with_resource(self) -> Mapping[str, Any]:
        """Return what the host offers."""
        return self._role.info.resource


def _nothing() -> None:
    pass


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
