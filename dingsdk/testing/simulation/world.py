"""Virtual time: processes whose jobs wait for each other, on one thread and without sleeping.

A ``World`` holds what is to happen, by time. Each job is a greenlet; it runs until it waits. What
is due at the same time happens in an order that the seed decides.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from dingsdk.errors import DingError
from dingsdk.worker.comm.scheduler import Job, Scheduler

LEAST_WAIT_S = 1e-6
MOST_AT_ONCE = 20_000
PREEMPTED_SHARE = 0.02
"""Of the times that a job takes a lock: how often others run first."""


class ProcessKilled(BaseException):
    """Raised where the jobs of a killed process wait, so that they end."""


class NoAnswerError(DingError, ConnectionError):
    """A message of a simulated process got no answer."""


class World:
    """What happens when.

    Args:
        seed: Of all that is left to chance.

    Attributes:
        now: Seconds since the beginning.
        events: How many things have happened.
        random: Chooses delays and the order of what is due at the same time.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.events = 0
        self.random = random.Random(seed)
        self.current: SimulatedJob | None = None
        self.locks_left = 0
        """How often jobs take locks before others run first."""
        self.servers: dict[str, tuple[SimulatedProcess, Callable[[Any], Any]]] = {}
        self.network = Network(self)
        self._hub = getcurrent()
        self._due: list[tuple[float, float, int, Callable[[], object], SimulatedJob | None]] = []
        """Time, chance, number, what to call; and whose it is."""
        self._chance = self.random.random
        self._number = 0
        self._until = 0.0
        self._at_once = 0
        """How many things have happened since time went on the last time."""

    def at(
        self, when: float, action: Callable[[], object], job: SimulatedJob | None = None
    ) -> None:
        """Call ``action`` at a time; it may not wait.

        Args:
            when: Seconds since the beginning.
            action: Returns at once. That of a job returns whether the job is to run.
            job: Whose action it is.
        """
        self._number = number = self._number + 1
        # Equal times are common: wakes are due at once.
        heappush(self._due, (when, self._chance(), number, action, job))

    def run(self, until: float) -> None:
        """Let time pass; raises AssertionError where it does not."""
        self._until, self._at_once = until, 0
        while (job := self._next(is_hub=True)) is not None:
            self.switch(job)
        self.now = until

    def _next(self, is_hub: bool) -> SimulatedJob | None:
        """Let happen what is due until a job is to run, and return it.

        None at the end; or at something that is none of jobs, for the hub to do: it may end jobs.
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
        """Run a job, and those that go on when it waits; only from outside of jobs."""
        self.current = job
        job.switch()
        self.current = None

    def new_greenlet(self, run: Callable[[], None]) -> greenlet:
        """Return a greenlet that goes back to the world when it waits."""
        return greenlet(run, parent=self._hub)

    def park(self) -> None:
        """Let the world go on; returns when the current job is to run again."""
        job = self.current
        assert job is not None  # only jobs wait
        if job.process.is_dead:
            raise ProcessKilled
        # From job to job, or on with the same one: each switch by way of the hub is two.
        try:
            following = self._next(is_hub=False)
        except BaseException as error:
            self._hub.throw(error)
        else:
            self.current = following
            if following is None:
                self._hub.switch()
            elif following is not job:
                following.switch()
        if job.process.is_dead:
            raise ProcessKilled


class SimulatedJob(Job):
    """A job of a simulated process.

    Attributes:
        is_waiting: Whether it waits for what is in ``condition``, ``predicate`` and ``deadline``.
        is_woken: Whether it is about to look for that.
        alarm_at: When it is to look whether its deadline is over; infinite for never.
    """

    condition: SimulatedCondition
    predicate: Callable[[], bool]
    deadline: float

    def __init__(self, process: SimulatedProcess, function: Callable[[], None], name: str) -> None:
        self.name = name
        self.process = process
        self.is_preemptive = True
        """Whether others may run where it takes a lock."""
        self.holds = 0
        """Conditions that it holds."""
        self.is_waiting = self.is_woken = False
        self.alarm_at = math.inf
        self.is_met = False
        """Whether its last wait ended because of what it waited for."""
        self._function = function
        self._done = False
        self._ended = SimulatedCondition(process)
        self.switch = process.world.new_greenlet(self._run).switch

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
        """Return whether to run: what it waits for is there, or it waited long enough."""
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
        """As ``go_on``, unless it has looked since it was woken."""
        return self.is_woken and self.go_on()

    def set_alarm(self, at: float) -> None:
        """Look at a time whether the deadline is over."""
        # One for all waits: most end before their deadlines, and would leave an event each.
        self.alarm_at = at
        self.process.world.at(at, self._alarm, self)

    def _alarm(self) -> bool:
        """As ``go_on``, where what it waits for has not come in time."""
        now = self.process.world.now
        if now < self.alarm_at:
            return False  # an earlier one took its place
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
        """As a condition of ``threading``, in virtual time."""
        if predicate():
            return True
        world = self._world
        job = world.current
        assert job is not None, "only jobs wait"
        assert job.holds == 1, f"{job.name} waits with another lock held"
        # Time goes on at every wait, or who waits for the rest of a deadline could wait for ever.
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
        """Make every waiter look at its predicate again, once the lock is free."""
        if not self.waiters:
            return
        self._is_notified = True
        if not self._is_held:
            self._look()

    def _look(self) -> None:
        self._is_notified = False
        # Most look in vain; those are not worth an event.
        waiters, self.waiters = self.waiters, []
        for job in waiters:
            if job.is_waiting and not job.process.is_dead:
                if job.predicate():
                    job.is_woken = True
                    self._world.at(self._world.now, job.wake, job)
                else:
                    self.waiters.append(job)

    def forget(self, job: SimulatedJob) -> None:
        """Take a job off the waiters."""
        if job in self.waiters:
            self.waiters.remove(job)


class SimulatedScheduler(Scheduler):
    """What the jobs of one process wait through."""

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
    """A process: its jobs, its clock, its connections. It may be stopped and killed.

    Args:
        world: Where it lives.
        name: For people.
        job_raised: Called with each job that raised, and what.

    Attributes:
        scheduler: What its jobs wait through.
        clock_offset_s: How far its clock is before the world's.
        resumes_at: Until when it is stopped.
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
        """End it at once, wherever its jobs are."""
        assert self.world.current is None  # nothing kills itself
        self.is_dead = True
        for address, (server, _) in list(self.world.servers.items()):
            if server is self:
                del self.world.servers[address]
        for job in self.jobs:
            if not job.done:
                self.world.switch(job)

    def sleep(self, seconds: float) -> None:
        """Let a job wait, as one that computes: nothing ends it early."""
        world, job = self.world, self.world.current
        assert job is not None
        end = world.now + seconds
        if seconds > 0:
            world.at(end, job.go_on, job)
        while world.now < end:  # what woke its last wait while it was stopped may come now
            world.park()

    def listen(self, address: str, handle: Callable[[Any], Any]) -> None:
        """Answer requests to an address: ``handle(message)`` is called on a job for each."""
        self.world.servers[address] = (self, handle)

    def request(self, address: str, message: Any, timeout_s: float, link: SimulatedLink) -> Any:
        """Send a request and return its answer.

        Raises:
            NoAnswerError: there was none in time.
        """
        return self.world.network.request(self, address, message, timeout_s, link)


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
            return self._process.request(self._address, message, left_s, self)
        finally:
            self._is_busy = False
            self.condition.notify_all()

    def close(self) -> None:
        """End the request under way, and refuse later ones."""
        self.is_closed = True
        self.condition.notify_all()


class Network:
    """Carries requests and answers; each message may be late, lost or doubled.

    Attributes:
        latency_s: Least and most time that a message takes.
        faults: What is wrong with the connection of a process, by its name.
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
        """As ``SimulatedProcess.request``."""
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
            job.is_preemptive = False  # it may hold a lock that is none of the scheduler's

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


class LinkFaults:
    """What is wrong with a connection.

    Attributes:
        is_cut: Whether nothing goes through.
        lost_share: Of messages, 0 to 1.
        doubled_share: Of messages, 0 to 1.
        late_s: How late messages are at most.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.lost_share = 0.0
        self.doubled_share = 0.0
        self.late_s = 0.0
