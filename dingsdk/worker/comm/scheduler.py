"""How the jobs of one process run: as threads, or as a transport decides.

Coordinator, collectors and learners are written as plain blocking code. They wait only through
a ``Scheduler``, so that the same code runs on threads or as greenlets of one thread.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from dingsdk.errors import ConfigError

_log = logging.getLogger(__name__)


class Condition(Protocol):
    """A lock with a wait on a predicate; ``threading.Condition`` over a plain lock is one.

    Hold it (``with condition:``) around ``wait_for`` and ``notify_all``. The lock is not
    reentrant. Nothing else that may wait is called while it is held.
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
        """Make every waiter look at its predicate again."""


class Job(ABC):
    """Something that a scheduler runs; ``error`` holds what it raised, if it did."""

    name: str
    error: BaseException | None = None

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the job; return whether it ended in time."""


class Scheduler(ABC):
    """Runs jobs and gives them what they need to wait for each other."""

    is_cooperative = False
    """Whether a job that does not wait keeps all others waiting."""

    def clock(self) -> float:
        """Return the seconds by which waits end; they never go back."""
        return time.monotonic()

    def record(self, path: Path) -> None:
        """Write which job ran when to a file; ConfigError where jobs do not take turns."""
        raise _no_turns(self)

    def replay(self, path: Path) -> threading.Event:
        """Let jobs run as in such a file; the event is set at its end. Errors as ``record``."""
        raise _no_turns(self)

    def held(self) -> AbstractContextManager[object]:
        """Start no job inside the block where jobs take turns; those spawned there start after it.

        A run is set up inside: what jobs do must not depend on how far the caller is with that.
        Nothing inside may wait for a job. Jobs of a scheduler without turns start at once.
        """
        return nullcontext()

    @abstractmethod
    def spawn(self, function: Callable[[], None], name: str) -> Job:
        """Run ``function`` beside the caller. What it raises is kept in ``Job.error``."""

    @abstractmethod
    def condition(self) -> Condition:
        """Return a new condition for the jobs, and for any thread beside them."""

    @abstractmethod
    def yield_turn(self) -> None:
        """Let other jobs run; called once per round of every long loop, no lock held."""

    @abstractmethod
    def stalled_job(self, limit_s: float) -> str | None:
        """Return what has kept all other jobs waiting for over ``limit_s`` seconds, if anything."""

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> list[str]:
        """Wait for all jobs; return the names of those that did not end in time."""


def _no_turns(scheduler: Scheduler) -> ConfigError:
    return ConfigError(
        f"system.record_schedule: the jobs of {type(scheduler).__name__} do not take turns; use "
        "the transport in_memory, with concurrency greenlets",
        path="system.record_schedule",
    )


class ThreadJob(Job):
    """A job on a thread of its own."""

    def __init__(self, function: Callable[[], None], name: str) -> None:
        self.name = name
        self._function = function
        # Daemon: a job that ignores its close flag must not keep the process alive.
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self.error = error
            _log.debug("job %s raised", self.name, exc_info=True)

    @property
    def done(self) -> bool:
        return self.thread.ident is not None and not self.thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        if self.thread is threading.current_thread():
            return False
        self.thread.join(timeout_s)
        return not self.thread.is_alive()


class ThreadScheduler(Scheduler):
    """One thread a job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[ThreadJob] = []

    def spawn(self, function: Callable[[], None], name: str) -> Job:
        job = ThreadJob(function, name)
        with self._lock:
            self._jobs = [other for other in self._jobs if not other.done]
            self._jobs.append(job)
        job.thread.start()
        return job

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def yield_turn(self) -> None:
        pass

    def stalled_job(self, limit_s: float) -> str | None:
        return None  # a hung thread holds up nobody else; its lease tells

    def close(self, timeout_s: float = 5.0) -> list[str]:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            jobs = list(self._jobs)
        return [job.name for job in jobs if not job.join(max(0.0, deadline - time.monotonic()))]
