"""How the jobs of one process run: as threads, or as the transport decides.

Coordinator, collectors and learners are written as plain blocking code. They wait only through
a ``Scheduler``, so that the same code runs on threads or as greenlets of one thread.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Protocol

_log = logging.getLogger(__name__)


class Condition(Protocol):
    """A lock with a wait on a predicate; ``threading.Condition`` over a plain lock is one.

    Hold it (``with condition:``) around ``wait_for`` and ``notify_all``. The lock is not
    reentrant. Do not call anything else that may wait while holding it.
    """

    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Any: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float, /) -> bool:
        """Release the lock until ``predicate()`` holds or the time is over; return which."""

    def notify_all(self) -> None:
        """Make every waiter check its predicate again."""


class Job(ABC):
    """A function that a scheduler runs; ``error`` is the exception that it raised, if any."""

    name: str
    error: BaseException | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the job; return whether it ended in time."""

    def call(self, function: Callable[[], None]) -> None:
        """Call the job's function; store its exception in ``error``."""
        try:
            function()
        except BaseException as error:
            self.error = error
            _log.debug("job %s raised", self.name, exc_info=True)


class Scheduler(ABC):
    """Runs jobs and gives them what they need to wait for each other."""

    is_cooperative = False
    """Whether a job that does not wait keeps all others waiting."""

    def clock(self) -> float:
        """Return the time in seconds that waits use; it never goes back."""
        return time.monotonic()

    @abstractmethod
    def spawn(self, function: Callable[[], None], name: str) -> Job:
        """Run ``function`` concurrently. An exception that it raises is stored in ``Job.error``."""

    @abstractmethod
    def condition(self) -> Condition:
        """Return a new condition, for jobs and for any other thread."""

    @abstractmethod
    def yield_turn(self) -> None:
        """Let other jobs run; called once per round of every long loop, without any lock."""

    @abstractmethod
    def stalled_job(self, limit_s: float) -> str | None:
        """Return the job that has blocked all others for over ``limit_s`` seconds, if any."""

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> list[str]:
        """Wait for all jobs; return the names of those that did not end in time."""


class ThreadJob(Job):
    """A job that runs on its own thread."""

    def __init__(self, function: Callable[[], None], name: str) -> None:
        self.name = name
        # In the context of its starter, which knows the run. Daemon: a job that ignores its close
        # flag must not keep the process alive.
        call = partial(copy_context().run, self.call, function)
        self.thread = threading.Thread(target=call, name=name, daemon=True)

    @property
    def done(self) -> bool:
        return self.thread.ident is not None and not self.thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        if self.thread is threading.current_thread():
            return False
        self.thread.join(timeout_s)
        return not self.thread.is_alive()


class ThreadScheduler(Scheduler):
    """Runs each job on its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[ThreadJob] = []

    def spawn(self, function: Callable[[], None], name: str) -> Job:
        job = ThreadJob(function, name)
        with self._lock:
            self._jobs = [other for other in self._jobs if not other.done]
            job.thread.start()  # a job that cannot be started must not be waited for
            self._jobs.append(job)
        return job

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def yield_turn(self) -> None:
        pass

    def stalled_job(self, limit_s: float) -> str | None:
        return None  # a hung thread does not block others; its lease ends instead

    def close(self, timeout_s: float = 5.0) -> list[str]:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            jobs = list(self._jobs)
        return [job.name for job in jobs if not job.join(max(0.0, deadline - time.monotonic()))]
