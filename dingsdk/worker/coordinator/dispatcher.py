"""Assigns tasks to idle workers, and runs the driver of each task in a job."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dingsdk.errors import DingError, TaskTimeoutError, error_text
from dingsdk.plugins import observe
from dingsdk.worker.comm.master import Master
from dingsdk.worker.comm.scheduler import Job
from dingsdk.worker.comm.transport import Transport, WorkerInfo
from dingsdk.worker.coordinator.pace import Pace
from dingsdk.worker.coordinator.recovery import OrphanTasks
from dingsdk.worker.coordinator.scheduler_state import SchedulerState
from dingsdk.worker.coordinator.tasks import TaskState

if TYPE_CHECKING:
    from dingsdk.worker.coordinator.coordinator import Coordinator

_log = logging.getLogger(__name__)


class QuietWatch:
    """Tells once, each time that a run has made no progress for ``limit_s``. The caller locks."""

    def __init__(self, state: SchedulerState, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._state = state
        self._clock = clock
        self._progress: object = None
        self._since = clock()
        self._has_said = False

    def look(self) -> str:
        """Return what a quiet run waits for; empty if there is progress, or it was told before.

        Also empty if the run waits for free storage: ``StorageOutage`` logs that.
        """
        state = self._state
        running = [(task.task_id, task.progress) for task in state.running.values()]
        progress = (state.totals.ended_env_steps, running)
        if progress != self._progress:
            self._progress, self._since, self._has_said = progress, self._clock(), False
        if self._has_said or self._clock() - self._since < self.limit_s:
            return ""
        self._has_said = True
        return "" if state.outage.text else self._causes()

    def _causes(self) -> str:
        state, causes = self._state, []
        joined = state.pool.counts()
        for name, role in state.roles.items():
            if role.worker_num and not joined[name]:
                causes.append(f"no {name} has joined")
            elif state.idle(name) is not None and not state.queues[name]:
                commander = state.commander
                kind = getattr(commander, "config", {}).get("type") or type(commander).__name__
                causes.append(f"commander {kind!r} has issued no task for an idle {name}")
        for task in state.running.values():
            worker_id = "" if task.worker is None else task.worker.worker_id
            what = f"waits for {task.waits_for}" if task.waits_for else "has reported no progress"
            causes.append(f"{task.kind} {worker_id} {what}")
        rows = sum(each.count() for each in state.buffers.values())
        return "; ".join([*causes, f"the replay buffer holds {rows} rows"])


class Dispatcher:
    """Watches workers, and gives the commander's tasks to those that are idle.

    Args:
        run: The coordinator of the run.
        tick_s: Seconds between two requests for tasks while nothing else happens.

    Attributes:
        master: The connections to the workers.
        orphans: The tasks of an earlier coordinator.
    """

    def __init__(self, run: Coordinator, transport: Transport, tick_s: float) -> None:
        self._run = run
        self._state, self._end, self._condition = run.state, run.end, run.condition
        self._cfg, self._clock = run.cfg, run.clock
        self._tick_s = tick_s
        self._quiet = QuietWatch(run.state, run.cfg.quiet_after_s, run.state.clock)
        self._jobs: list[Job] = []
        self._swept_at = run.clock()
        self._has_news = False
        self.orphans = OrphanTasks(run.state)
        self.master = Master(
            transport.master_end(),
            run.scheduler,
            on_join=self.join,
            on_renew=self.renew,
            on_lost=self.lose,
            lease_s=run.cfg.lease_s,
        )

    def start(self) -> None:
        """Begin to give tasks to workers."""
        self.spawn(self.run, "coordinator")

    def close(self, timeout_s: float) -> list[str]:
        """Wait for all jobs, which the end of the run lets end; return the names of the others."""
        self.notify()
        deadline = self._clock() + timeout_s
        jobs = [job for job in self._jobs if not job.join(max(0.0, deadline - self._clock()))]
        self.master.close()
        return [job.name for job in jobs]

    def notify(self) -> None:
        """Wake all waiters so that they check again."""
        with self._condition:
            self._has_news = True
            self._condition.notify_all()

    def join(self, info: WorkerInfo) -> None:
        """Add a worker; it continues with a task that it kept from an earlier coordinator."""
        roles = self._state.roles
        with self._condition:
            self._state.pool.add(info)
            task = None if self._end.is_near else self.orphans.adopt(info)
        _log.info("worker %s joined", info.worker_id)
        if task is not None:
            _log.info("it continues with task %s", task.task_id)
            self._start(task, goes_on=True)
        if info.role not in roles:
            text = "worker %s joined as %r, for which this run has no tasks; its roles: %s"
            _log.warning(text, info.worker_id, info.role, ", ".join(roles))
        self.notify()

    def renew(self, worker_id: str) -> None:
        """Renew the lease of a worker."""
        with self._condition:
            self._state.pool.renew(worker_id)

    def lose(self, info: WorkerInfo, reason: str) -> None:
        """Remove a worker; its task ends with an error in its own job."""
        _log.warning("worker %s is lost: %s", info.worker_id, reason)
        with self._condition:
            self._state.pool.remove(info)
        self.notify()

    def run(self) -> None:
        """Give tasks to workers until the run is closed or has failed."""
        try:
            # Also after the end of training: the worker of a last evaluation may become silent.
            while not self._end.is_halted:
                self.dispatch_once()
        except Exception as error:
            # Without a dispatcher the run would hang without an error.
            self.fail(_as_ding_error(error, "dispatcher"))
            raise

    def dispatch_once(self) -> None:
        """Wait for news or a tick, then look at workers, disks and tasks once."""
        with self._condition:
            self._condition.wait_for(lambda: self._end.is_halted or self._has_news, self._tick_s)
            self._has_news = False
            self._state.clock.look()
            silent = self._state.pool.silent()
            failure = self._state.outage.failure()
            changed = self._state.pace.look(self._state.running.values())
            why_quiet = "" if self._end.is_near else self._quiet.look()
        if why_quiet:
            _log.warning("nothing has happened for %.0f s: %s", self._quiet.limit_s, why_quiet)
        if failure is not None:
            self.fail(failure)
        for worker_id, pace in changed.items():
            _report_pace(worker_id, pace)
        for info in silent:
            self.master.lose(info.worker_id, f"silent for {self._cfg.lease_s} s", info.incarnation)
        self._run.keeper.check_owner()
        self._sweep_orphans()
        with self._condition:
            if not self._end.is_near and self._run.keeper.save_if_due():
                self._condition.notify_all()
            if self._end.is_near or self._clock() >= self.orphans.until:
                self.orphans.expire()
            given = self._assign()
        for task in given:
            self._start(task)

    def _assign(self) -> list[TaskState]:
        given: list[TaskState | None] = []
        is_over = self._end.look_at_env_steps()
        for role in () if self._end.is_near else self._state.roles:
            self._state.produce(role, ends_collecting=is_over)
            given.append(self._state.assign(role))
        if self._end.owed_evaluations:
            given.append(self._end.assign_evaluation())
            self._condition.notify_all()
        return [task for task in given if task is not None]

    def _start(self, task: TaskState, goes_on: bool = False) -> None:
        self.spawn(functools.partial(self.run_task, task, goes_on), f"{task.task_id}-driver")

    def _sweep_orphans(self) -> None:
        """Delete unannounced payloads of dead workers, twice in each ``orphan_grace_s``."""
        grace_s = self._cfg.orphan_grace_s
        if self._clock() - self._swept_at < grace_s / 2:
            return
        self._swept_at = self._clock()
        with self._condition:
            is_live = self._state.find_live()
        count = self._run.data_store.sweep_orphans(is_live, grace_s)
        if count:
            _log.info("deleted %d unannounced payloads", count)

    def run_task(self, state: TaskState, goes_on: bool = False) -> None:
        """Drive a task, and record how it ended."""
        worker = state.worker
        assert worker is not None  # assigned
        task = {**state.task, f"{state.role}_id": worker.worker_id}
        task["payload_prefix"] = state.payload_prefix
        task["resource_info"] = worker.resource
        error: DingError | None = None
        try:
            role = self._run.roles[state.role]
            if goes_on:
                role.go_on(self._run, state)
            else:
                role.drive(self._run, state, task)
        except Exception as raised:
            error = _as_ding_error(raised, f"task {state.task_id}")
            if isinstance(raised, TaskTimeoutError):
                # Drop the worker first, so that its late answer is not taken for the next task's.
                self.master.lose(worker.worker_id, str(raised), worker.incarnation)
        with self._condition:
            outcome, is_fatal = self._state.end(state, error)
            self._end.note_end(state, error)
        if is_fatal and outcome is not None and not self._end.is_closed:
            self.fail(outcome)
        elif outcome is not None and not self._end.is_closed:
            _log.error("%s", outcome)
        self.notify()

    def fail(self, error: DingError) -> None:
        """End the run with an error, which its caller raises and shows to the user once."""
        _log.debug("the run failed", exc_info=error)
        with self._condition:
            self._end.failure = self._end.failure or error
            self._condition.notify_all()

    def spawn(self, function: Callable[[], None], name: str) -> None:
        """Run a function in a job, which ``close`` waits for."""
        self._jobs = [job for job in self._jobs if not job.done]
        self._jobs.append(self._run.scheduler.spawn(function, name))


def _as_ding_error(error: Exception, where: str) -> DingError:
    if isinstance(error, DingError):
        return error
    wrapped = DingError(f"{where}: {error_text(error)}")
    wrapped.__cause__ = error
    return wrapped


def _report_pace(worker_id: str, pace: Pace) -> None:
    """Log that a worker became a straggler or caught up, and call the observers."""
    share = pace.relative or 0.0
    if pace.is_straggler:
        text = "%s %s is a straggler: %.3g per s, %.2g of the median of the others"
        _log.warning(text, pace.kind, worker_id, pace.per_s, share)
    else:
        _log.info("%s %s has caught up: %.3g per s", pace.kind, worker_id, pace.per_s)
    observe().pace_changed(worker_id=worker_id, relative_pace=share, is_straggler=pace.is_straggler)
