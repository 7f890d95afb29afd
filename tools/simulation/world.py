"""Virtual time: jobs of simulated processes run on one thread, without sleeping.

A ``World`` has a queue of events by time. Each job is a greenlet, which runs until it waits.
Events that are due at the same time happen in an order that the seed determines.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from dingsdk.errors import DingError
from dingsdk.worker.comm.scheduler import Job, Scheduler

LEAST_WAIT_S = 1e-6
MOST_AT_ONCE = 20_000
PREEMPTED_SHARE = 0.02
"""Share of the times that a job takes a lock in which other jobs run first."""


class ProcessKilled(BaseException):
    """Raised in the waiting jobs of a killed process, to end them."""


class NoAnswerError(DingError, ConnectionError):
    """A message of a simulated process got no answer."""


class World:
    """The queue of events, and the virtual time.

    Args:
        seed: Seed of all random decisions.

    Attributes:
        now: Seconds since the start of the simulation.
        events: Number of events so far.
        random: Chooses delays, and the order of events that are due at the same time.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.events = 0
        self.random = random.Random(seed)
        self.current: SimulatedJob | None = None
        self.locks_left = 0
        """How often jobs still take locks until other jobs run first."""
        self.servers: dict[str, tuple[SimulatedProcess, Callable[[Any], Any]]] = {}
        self.network = Network(self)
        self.hub = getcurrent()
        self._due: list[tuple[float, float, int, Callable[[], object], SimulatedJob | None]] = []
        """Heap of (time, random number, sequence number, action, job of the action or None)."""
        self._chance = self.random.random
        self._number = 0
        self._until = 0.0
        self._at_once = 0
        """Number of events since the time last advanced."""

    def at(
        self, when: float, action: Callable[[], object], job: SimulatedJob | None = None
    ) -> None:
        """Call ``action`` at a time.

        Args:
            when: Seconds since the start of the simulation.
            action: Must not wait. The action of a job returns whether the job is to run.
            job: The job that the action belongs to.
        """
        self._number = number = self._number + 1
        # Equal times are common, because wakes are due at once; the random number orders them.
        heappush(self._due, (when, self._chance(), number, action, job))

    def run(self, until: float) -> None:
        """Run until a time; raises AssertionError if the time does not advance."""
        self._until, self._at_once = until, 0
        while (job := self._next(is_hub=True)) is not None:
            self.switch(job)
        self.now = until

    def _next(self, is_hub: bool) -> SimulatedJob | None:
        """Handle due events until a job is to run, and return that job.

        Returns None when no event is due. Outside of the hub, it also returns None before an event
        that belongs to no job: only the hub may handle it, because it may end jobs.
        """
        self.current, due, until = None, self._due, self._until
        while due:
            now, _, _, action, job = due[0]
            if now > until or (job is None and not is_hub):
                return None
            heappop(due)
            self.events += 1
            if now > self.now:
                self.now, self._at_once = now, 0
            elif (at_once := self._at_once) < MOST_AT_ONCE:
                self._at_once = at_once + 1
            else:
                raise AssertionError("time stands still: jobs wait for nothing again and again")
            if action() and job is not None:
                return job
        return None

    def switch(self, job: SimulatedJob) -> None:
        """Run a job, and the jobs that continue when it waits; must not be called in a job."""
        self.current = job
        job.switch()
        self.current = None

    def park(self) -> None:
        """Let other events happen; returns when the current job is to run again."""
        job = self.current
        assert job is not None  # only jobs wait
        if job.process.is_dead:
            raise ProcessKilled
        # Switch directly to the next job, or continue this one; a detour to the hub costs a switch.
        try:
            following = self._next(is_hub=False)
        except BaseException as error:
            self.hub.throw(error)
        else:
            self.current = following
            if following is None:
                self.hub.switch()
            elif following is not job:
                following.switch()
        if job.process.is_dead:
            raise ProcessKilled


class SimulatedJob(Job):
    """A job of a simulated process.

    Attributes:
        is_waiting: Whether it waits on ``condition`` for ``predicate``, until ``deadline``.
        is_woken: Whether it is about to check ``predicate``.
        alarm_at: When it checks whether its deadline is over; infinite for never.
    """

    condition: SimulatedCondition
    predicate: Callable[[], bool]
    deadline: float

    def __init__(self, process: SimulatedProcess, function: Callable[[], None], name: str) -> None:
        self.name = name
        self.process = process
        self.is_preemptive = True
        """Whether other jobs may run when it takes a lock."""
        self.holds = 0
        """Number of conditions that it holds."""
        self.is_waiting = self.is_woken = False
        self.alarm_at = math.inf
        self.is_met = False
        """Whether its last wait ended because the predicate was true."""
        self._function = function
        self._done = False
        self._ended = SimulatedCondition(process)
        self.switch = greenlet(self._run, parent=process.world.hub).switch

    @property
    def done(self) -> bool:
        return self._done

    def join(self, timeout_s: float) -> bool:
        if self.process.world.current is self:
            return False
        with self._ended:
            return self._ended.wait_for(lambda: self._done, timeout_s)

    def _run(self) -> None:
        try:
            if not self.process.is_dead:
                self._function()
        except BaseException as error:
            self.error = error
            self.process.job_raised(self, error)
        self._done = True
        self._ended.notify_all()

    def go_on(self) -> bool:
        """Return whether to run now: its predicate is true, or its deadline is over."""
        process = self.process
        world = process.world
        if process.is_dead or self._done:
            return False
        if process.resumes_at > world.now:
            world.at(process.resumes_at, self.go_on, self)
            return False
        if self.is_waiting:
            self.is_woken = False
            self.is_met = self.predicate()
            if not self.is_met and world.now < self.deadline:
                self.condition.waiters.append(self)
                return False
            self.is_waiting = False
        return True

    def wake(self) -> bool:
        """As ``go_on``, but return False if it has checked its predicate since it was woken."""
        return self.is_woken and self.go_on()

    def set_alarm(self, at: float) -> None:
        """Check at a time whether the deadline is over."""
        # One alarm for all waits, because most waits end before their deadlines.
        self.alarm_at = at
        self.process.world.at(at, self._alarm, self)

    def _alarm(self) -> bool:
        """Return whether to run because the deadline is over."""
        now = self.process.world.now
        if now < self.alarm_at:
            return False  # an earlier alarm replaced this one
        self.alarm_at = math.inf
        if not self.is_waiting:
            return False
        if now < self.deadline:
            self.set_alarm(self.deadline)
            return False
        self.condition.forget(self)
        return self.go_on()


class SimulatedCondition:
    """A condition of the jobs of one process."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._world = process.world
        self.waiters: list[SimulatedJob] = []
        self._is_held = self._is_notified = False

    def __enter__(self) -> SimulatedCondition:
        world = self._world
        job = world.current
        if job is not None:
            if job.holds:
                job.holds += 1
            else:
                if job.is_preemptive:
                    world.locks_left -= 1
                    if world.locks_left < 0:
                        world.locks_left = int(world.random.expovariate(PREEMPTED_SHARE))
                        world.at(world.now, job.go_on, job)
                        world.park()
                job.holds = 1
        self._is_held = True
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        job = self._world.current
        if job is not None:
            job.holds -= 1
        self._is_held = False
        if self._is_notified:
            self._look()

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Wait as a condition of ``threading`` does, in virtual time."""
        if predicate():
            return True
        world = self._world
        job = world.current
        assert job is not None, "only jobs wait"
        assert job.holds == 1, f"{job.name} waits with another lock held"
        # Each wait takes time; otherwise a loop that waits for the rest of a deadline never ends.
        deadline = world.now + (timeout_s if timeout_s > LEAST_WAIT_S else LEAST_WAIT_S)
        self._is_held = False
        if self._is_notified:
            self._look()
        self.waiters.append(job)
        job.condition, job.predicate, job.deadline = self, predicate, deadline
        job.is_waiting, job.holds = True, 0
        if deadline < job.alarm_at:
            job.set_alarm(deadline)
        try:
            world.park()
        finally:
            job.holds = 1
            self._is_held = True
        return job.is_met

    def notify_all(self) -> None:
        """Make every waiter check its predicate again, once the lock is free."""
        if not self.waiters:
            return
        self._is_notified = True
        if not self._is_held:
            self._look()

    def _look(self) -> None:
        self._is_notified = False
        # Most predicates are still false; an event for each of these would cost too much.
        waiters, self.waiters = self.waiters, []
        for job in waiters:
            if job.is_waiting and not job.process.is_dead:
                if job.predicate():
                    job.is_woken = True
                    self._world.at(self._world.now, job.wake, job)
                else:
                    self.waiters.append(job)

    def forget(self, job: SimulatedJob) -> None:
        """Remove a job from the waiters."""
        if job in self.waiters:
            self.waiters.remove(job)


class SimulatedScheduler(Scheduler):
    """The scheduler of the jobs of one process."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def clock(self) -> float:
        process = self._process
        return process.world.now + process.clock_offset_s

    def spawn(self, function: Callable[[], None], name: str) -> SimulatedJob:
        process = self._process
        if process.is_dead:
            raise ProcessKilled
        job = SimulatedJob(process, function, name)
        process.jobs = [each for each in process.jobs if not each._done]
        process.jobs.append(job)
        process.world.at(process.world.now, job.go_on, job)
        return job

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self._process)

    def yield_turn(self) -> None:
        pass

    def stalled_job(self, limit_s: float) -> str | None:
        return None

    def close(self, timeout_s: float = 5.0) -> list[str]:
        return []


class SimulatedProcess:
    """A simulated process: its jobs, its clock and its connections. It can be stopped and killed.

    Args:
        world: The world that it is in.
        name: Its name.
        job_raised: Called with each job that raised, and the error.

    Attributes:
        scheduler: The scheduler of its jobs.
        clock_offset_s: How far its clock is ahead of the world's time.
        resumes_at: The time until which it is stopped.
    """

    def __init__(
        self,
        world: World,
        name: str,
        job_raised: Callable[[SimulatedJob, BaseException], None],
    ) -> None:
        self.world = world
        self.name = name
        self.job_raised = job_raised
        self.scheduler = SimulatedScheduler(self)
        self.jobs: list[SimulatedJob] = []
        self.clock_offset_s = 0.0
        self.resumes_at = 0.0
        self.is_dead = False

    def kill(self) -> None:
        """End it and its jobs at once."""
        assert self.world.current is None  # a job cannot kill its own process
        self.is_dead = True
        for address, (server, _) in list(self.world.servers.items()):
            if server is self:
                del self.world.servers[address]
        for job in self.jobs:
            if not job.done:
                self.world.switch(job)

    def sleep(self, seconds: float) -> None:
        """Let the current job wait, as if it computed: nothing ends the wait early."""
        world, job = self.world, self.world.current
        assert job is not None
        end = world.now + seconds
        if seconds > 0:
            world.at(end, job.go_on, job)
        while world.now < end:  # a late wake-up of an earlier wait may end ``park`` too soon
            world.park()

    def listen(self, address: str, handle: Callable[[Any], Any]) -> None:
        """Answer requests to an address: each is handled by ``handle(message)`` in a new job."""
        self.world.servers[address] = (self, handle)


class SimulatedLink:
    """A connection of a simulated process; one request at a time."""

    def __init__(self, process: SimulatedProcess, address: str) -> None:
        self._process = process
        self._address = address
        self.condition = process.scheduler.condition()
        self._is_busy = False
        self.is_closed = False

    def request(self, message: Any, timeout_s: float) -> Any:
        """Send a request and return its answer; raises NoAnswerError."""
        clock = self._process.scheduler.clock
        deadline = clock() + timeout_s
        with self.condition:
            if not self.condition.wait_for(lambda: not self._is_busy, timeout_s):
                raise NoAnswerError("the connection is busy")
            self._is_busy = True
        try:
            left_s = max(0.0, deadline - clock())
            network = self._process.world.network
            return network.request(self._process, self._address, message, left_s, self)
        finally:
            self._is_busy = False
            self.condition.notify_all()

    def close(self) -> None:
        """End the request in progress; later requests raise NoAnswerError."""
        self.is_closed = True
        self.condition.notify_all()


class Network:
    """Carries requests and answers; each message may be late, lost or doubled.

    Attributes:
        latency_s: The shortest and longest time that a message takes.
        faults: The faults of the connection of each process, by its name.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.latency_s = (0.0002, 0.002)
        self.faults: dict[str, LinkFaults] = {}

    def request(
        self,
        process: SimulatedProcess,
        address: str,
        message: Any,
        timeout_s: float,
        link: SimulatedLink,
    ) -> Any:
        """Send a request and return its answer; raises NoAnswerError if none comes in time."""
        world = self._world
        answers: list[tuple[Any, NoAnswerError | None]] = []

        def arrive() -> None:
            server, handle = world.servers.get(address, (None, None))
            if server is None or handle is None:
                self._carry(process, lambda: answer((None, NoAnswerError("nobody listens"))))
                return

            def serve() -> None:
                found = handle(message)
                self._carry(process, lambda: answer((found, None)))

            job = server.scheduler.spawn(serve, f"{server.name}-request")
            job.is_preemptive = False  # it may hold a lock that is not one of the scheduler

        def answer(found: tuple[Any, NoAnswerError | None]) -> None:
            answers.append(found)
            link.condition.notify_all()

        self._carry(process, arrive)
        with link.condition:
            link.condition.wait_for(lambda: bool(answers) or link.is_closed, timeout_s)
        if not answers or link.is_closed:
            raise NoAnswerError(f"{address} did not answer within {timeout_s:.3f} s")
        found, error = answers[0]
        if error is not None:
            raise error
        return found

    def _carry(self, process: SimulatedProcess, deliver: Callable[[], None]) -> None:
        world, faults = self._world, self.faults.get(process.name)
        least_s, most_s = self.latency_s
        copies = 1
        if faults is not None:
            chance = world.random.random()
            if faults.is_cut or chance < faults.lost_share:
                return
            most_s += faults.late_s
            copies += chance > 1 - faults.doubled_share
        for _ in range(copies):
            world.at(world.now + world.random.uniform(least_s, most_s), deliver)


@dataclass(slots=True)
class LinkFaults:
    """The faults of a connection.

    Attributes:
        is_cut: Whether all messages are lost.
        lost_share: Share of messages that are lost, 0 to 1.
        doubled_share: Share of messages that are delivered twice, 0 to 1.
        late_s: The largest extra delay of a message.
    """

    is_cut: bool = False
    lost_share: float = 0.0
    doubled_share: float = 0.0
    late_s: float = 0.0
