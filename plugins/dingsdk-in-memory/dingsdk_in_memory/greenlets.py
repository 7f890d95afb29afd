"""Jobs as greenlets of one thread.

Two threads that both run Python code switch about every 5 ms, and also at every call that
releases the interpreter lock, such as a small torch operation. Greenlets on one thread switch in
under a microsecond, and only where a job waits or yields.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from greenlet import getcurrent, greenlet

from dingsdk.errors import ClosedError
from dingsdk.worker.comm import Condition, Job, Scheduler

_T = TypeVar("_T")
IDLE_S = 0.05
"""Longest sleep while all jobs wait; a notification from another thread ends it earlier."""


class GreenletCondition(threading.Condition):
    """A condition for the jobs of one GreenletScheduler and for any other thread.

    The predicate of a waiting job is checked again only after ``notify_all`` or at its deadline.
    ``notify_all`` checks those of other threads itself: waking a thread takes both threads about
    50 us, and the one that waits for the end of a run would be woken by each message.
    """

    def __init__(self, scheduler: GreenletScheduler) -> None:
        super().__init__(threading.Lock())
        self._scheduler = scheduler
        self._of_threads: list[Callable[[], object]] = []
        self.version = 0

    def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
        """Wait until ``predicate`` is true, or for ``timeout`` seconds; return its last result."""
        if not self._scheduler.is_here:
            self._of_threads.append(predicate)
            try:
                return super().wait_for(predicate, timeout)
            finally:
                self._of_threads.remove(predicate)
        clock = self._scheduler.clock
        deadline = float("inf") if timeout is None else clock() + timeout
        while not (found := predicate()):
            if clock() >= deadline:
                return found
            seen = self.version
            self.release()
            try:
                self._scheduler.park(self, seen, deadline)
            finally:
                self.acquire()
        return found

    def notify_all(self) -> None:
        """Wake all waiting jobs, and the threads if the predicate of one holds or raises."""
        self.version += 1
        if any(map(_has_ended, self._of_threads)):
            super().notify_all()
        self._scheduler.wake()


def _has_ended(predicate: Callable[[], object]) -> bool:
    try:
        return bool(predicate())
    except Exception:
        return True  # raised again in the thread that waits


class GreenletJob(Job):
    """A job that runs as a greenlet, which is created on the scheduler's thread."""

    def __init__(self, function: Callable[[], None], name: str, ended: GreenletCondition) -> None:
        self.name = name
        self._function = partial(copy_context().run, function)
        self._ended = ended
        self._done = False
        self.greenlet: greenlet | None = None
        self.condition: GreenletCondition | None = None
        self.seen = 0
        self.deadline = 0.0

    def run(self) -> None:
        """Call the function, and end."""
        self.call(self._function)
        self._end()

    def cancel(self, error: BaseException) -> None:
        """End the job before it has begun."""
        self.error = error
        self._end()

    def _end(self) -> None:
        with self._ended:
            self._done = True
            self._ended.notify_all()

    @property
    def done(self) -> bool:
        return self._done

    def join(self, timeout_s: float) -> bool:
        with self._ended:
            return self._ended.wait_for(lambda: self._done, timeout_s)


class GreenletScheduler(Scheduler):
    """Runs all jobs on one thread, which starts with the first job."""

    is_cooperative = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[GreenletJob] = deque()
        self._jobs: list[GreenletJob] = []
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._thread_id = -1
        self._hub: greenlet | None = None
        self._current: GreenletJob | None = None
        self._switched_at = 0.0
        self._is_aborted = False
        self._ended = GreenletCondition(self)

    def spawn(self, function: Callable[[], None], name: str) -> Job:
        job = GreenletJob(function, name, self._ended)
        with self._lock:
            if self._is_aborted:
                raise ClosedError("the scheduler is closed", what="scheduler")
            self._new.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="greenlets", daemon=True)
                self._thread.start()
        self.wake()
        return job

    def condition(self) -> Condition:
        return GreenletCondition(self)

    def yield_turn(self) -> None:
        if self.is_here and self._hub is not None:
            self._hub.switch()

    def stalled_job(self, limit_s: float) -> str | None:
        job, since = self._current, self._switched_at
        if job is None or time.monotonic() - since < limit_s:
            return None
        frame = sys._current_frames().get(self._thread_id)
        where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
        return f"{job.name}\n{where}"

    def close(self, timeout_s: float = 5.0) -> list[str]:
        """Wait for all jobs; those that still wait at the deadline get ``ClosedError``."""
        with self._lock:
            thread, jobs = self._thread, [*self._jobs, *self._new]
        deadline = time.monotonic() + timeout_s
        late = [job.name for job in jobs if not job.join(max(0.0, deadline - time.monotonic()))]
        with self._lock:
            self._is_aborted = True
        self.wake()
        if thread is not None and not self.is_here:
            # Do not wait again for a job that has blocked all others for so long.
            is_stalled = self.stalled_job(timeout_s) is not None
            thread.join(0.0 if is_stalled else max(1.0, deadline - time.monotonic()))
        return late

    @property
    def is_here(self) -> bool:
        """Whether the caller is a job of this scheduler."""
        return threading.get_ident() == self._thread_id

    def park(self, condition: GreenletCondition, seen: int, deadline: float) -> None:
        """Let other jobs run until the condition is notified or the deadline is over."""
        job, hub = self._current, self._hub
        assert job is not None  # only jobs run on this thread
        assert hub is not None
        job.condition, job.seen, job.deadline = condition, seen, deadline
        try:
            hub.switch()
        finally:
            job.condition = None

    def wake(self) -> None:
        """End the hub's sleep; called after any change that may let a job continue."""
        if not self.is_here:
            self._wake.set()

    def _loop(self) -> None:
        self._thread_id = threading.get_ident()
        self._hub = getcurrent()
        while True:
            while self._new:
                job = self._new.popleft()
                job.greenlet = greenlet(job.run)
                self._jobs.append(job)
            if self._is_aborted:
                break
            if not self._run_ready():
                self._sleep()
        for job in tuple(self._jobs):
            self._switch(job, ClosedError(f"{job.name} was still waiting at the close"))

    def _run_ready(self) -> bool:
        """Run each job that can continue, until it waits; return whether there was any."""
        moved = False
        for job in tuple(self._jobs):
            condition, now = job.condition, time.monotonic()
            if condition is None or condition.version != job.seen or now >= job.deadline:
                self._switch(job)
                moved = True
        return moved

    def _switch(self, job: GreenletJob, error: ClosedError | None = None) -> None:
        assert job.greenlet is not None  # adopted before it runs
        self._current, self._switched_at = job, time.monotonic()
        try:
            if error is None:
                job.greenlet.switch()
            elif job.greenlet:
                job.greenlet.throw(error)
            else:  # it has not begun: a thrown error would be raised here
                job.cancel(error)
        finally:
            self._current = None
        if job.greenlet.dead:
            self._jobs.remove(job)

    def _sleep(self) -> None:
        until = min((job.deadline for job in self._jobs), default=float("inf"))
        if not self._new:
            self._wake.wait(max(0.0, min(IDLE_S, until - time.monotonic())))
        self._wake.clear()
