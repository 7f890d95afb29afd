"""The state of a run: workers, their leases, tasks, the payloads of buffers, and counters.

It holds state only and never waits: the coordinator calls it with its condition held.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dingsdk.data.container import encode_json
from dingsdk.errors import DingError
from dingsdk.worker.comm.transport import WorkerInfo
from dingsdk.worker.commander.base import BaseParallelCommander
from dingsdk.worker.coordinator.clock import RunClock
from dingsdk.worker.coordinator.journal import Fact, Place, TaskChanged, TaskRecord
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.outage import StorageOutage
from dingsdk.worker.coordinator.pace import PaceBoard
from dingsdk.worker.coordinator.retries import LOSSES, Retries
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.sample_counts import SampleCounts

TASK_TIMEOUT_S = 600.0
"""How long a task may wait for a worker if the role has no ``<role>_task_timeout``."""


class RunTotals(msgspec.Struct):
    """What a run has done, apart from its running tasks and open buffers.

    Attributes:
        ended_env_steps: Env steps of collecting tasks that have ended, and of before the run.
        episodes: Complete episodes of collecting tasks that have ended.
        ended_counts: Samples of buffers that are closed.
        unacknowledged_rows: Rows that were announced and will never be acknowledged.
        ended_iter: Train iteration of the learner task that ended last.
        learner_tasks: How many learner tasks have finished their training.
        evaluations: All recorded evaluations, as plain data.
    """

    ended_env_steps: int = 0
    episodes: int = 0
    ended_counts: SampleCounts = SampleCounts()
    unacknowledged_rows: int = 0
    ended_iter: int = 0
    learner_tasks: int = 0
    evaluations: list[dict[str, Any]] = []


class WorkerPool:
    """The joined workers, and the end of each worker's lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, WorkerInfo] = {}
        self._lease_ends: dict[str, float] = {}

    def add(self, info: WorkerInfo) -> None:
        """Add a worker with a fresh lease."""
        self._workers[info.worker_id] = info
        self.renew(info.worker_id)

    def remove(self, info: WorkerInfo) -> None:
        """Remove a worker, unless it has left or has rejoined as another incarnation."""
        if self._workers.get(info.worker_id) == info:
            del self._workers[info.worker_id], self._lease_ends[info.worker_id]

    def of_role(self, role: str) -> list[WorkerInfo]:
        """Return the joined workers of a role."""
        return [info for info in self._workers.values() if info.role == role]

    def counts(self) -> Counter[str]:
        """Return the number of joined workers by role."""
        return Counter(info.role for info in self._workers.values())

    def leases(self) -> list[tuple[WorkerInfo, float]]:
        """Return the joined workers and the seconds until each lease ends."""
        now = self._clock()
        return [(info, self._lease_ends[name] - now) for name, info in self._workers.items()]

    def renew(self, worker_id: str) -> None:
        """Renew a lease; a worker that is not joined has none."""
        if worker_id in self._workers:
            self._lease_ends[worker_id] = self._clock() + self._lease_s

    def silent(self) -> list[WorkerInfo]:
        """Return the workers whose lease is over."""
        now = self._clock()
        return [info for name, info in self._workers.items() if self._lease_ends[name] <= now]


class SchedulerState:
    """The tasks of a run (queued or running), its workers, buffers and counters. The caller locks.

    Args:
        new_payloads: Returns the empty payloads of the buffer of a learner's task.
        first_env_steps: Env steps that were collected before the run.

    Attributes:
        pool: The joined workers.
        outage: Why workers wait for free storage.
        pace: How fast the workers with tasks are.
        running: The tasks that workers have, by id.
        queues: The tasks that wait for a worker, by role.
        buffers: The payloads of the open replay buffers, by buffer id.
        totals: Counts that outlive tasks and buffers.
        note: Called with each fact about tasks, once it is true; None without a journal.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        commander: BaseParallelCommander,
        cfg: CoordinatorSection,
        clock: RunClock,
        new_payloads: Callable[[TaskState], LivePayloads],
        first_env_steps: int = 0,
    ) -> None:
        self.roles = roles
        self.commander = commander
        self.clock = clock
        self.pool = WorkerPool(cfg.lease_s, clock)
        self.outage = StorageOutage(cfg.storage_timeout_s, clock)
        self.pace = PaceBoard(cfg.straggler_factor, cfg.straggler_window_s, clock)
        self.running: dict[str, TaskState] = {}
        self.queues: dict[str, deque[TaskState]] = {name: deque() for name in roles}
        self.buffers: dict[str, LivePayloads] = {}
        self.totals = RunTotals(ended_env_steps=first_env_steps)
        self.note: Callable[[Fact], None] | None = None
        self._cfg = cfg
        self._new_payloads = new_payloads
        self._retries = Retries(cfg.max_attempts, cfg.lease_s, clock)

    @property
    def train_iter(self) -> int:
        """The learner's newest iteration; with several learners, the lowest of them."""
        out = (state.progress for state in self._out if state.owns_buffer)
        return min(out, default=self.totals.ended_iter)

    def begin_home(self, state: TaskState) -> None:
        """Let another worker hold the rows of a learner's task; the first one opens the buffer."""
        payloads = self.buffers.get(state.buffer_id)
        if payloads is None:
            payloads = self.open_buffer(state)
        payloads.restart()

    def open_buffer(self, learner: TaskState) -> LivePayloads:
        """Return the new, empty payloads of a learner's task."""
        made = self.buffers[learner.buffer_id] = self._new_payloads(learner)
        return made

    def produce(self, role: str, *, ends_collecting: bool = False) -> None:
        """Request a task if a worker is idle and no task is queued, so that tasks are recent.

        Args:
            role: Role of the worker.
            ends_collecting: Whether collectors only evaluate from now on; other queued tasks of
                theirs are withdrawn.
        """
        only_evaluates = ends_collecting and role == "collector"
        for state in list(self.queues[role]) if only_evaluates else ():
            if not state.is_evaluation:
                self.withdraw(state)
        if self.queues[role] or self.idle(role) is None:
            return
        commander = self.commander
        task = (
            commander.get_eval_task() if only_evaluates else self.roles[role].next_task(commander)
        )
        if task is not None:
            self._queue(TaskState(task["task_id"], role, task, self.clock()))

    def _queue(self, state: TaskState) -> None:
        self.queues[state.role].append(state)
        self._note(state, "queued")

    def idle(self, role: str) -> WorkerInfo | None:
        """Return a worker of a role that has no task; None if there is none."""
        busy = {state.worker.worker_id for state in self.running.values() if state.worker}
        for info in self.pool.of_role(role):
            if info.worker_id not in busy:
                return info
        return None

    def assign(self, role: str) -> TaskState | None:
        """Assign the next task to an idle worker and return it; None without a task or a worker.

        A task that waited too long is reported to the commander as failed.
        """
        queue = self.queues[role]
        if not queue:
            return None
        state = queue[0]
        limit_s = float(getattr(self._cfg, f"{role}_task_timeout", TASK_TIMEOUT_S))
        if self.clock() - state.start_time > limit_s:
            self.withdraw(state)
            return None
        if not self.roles[role].can_run(state, self.buffers):
            return None
        worker = self.idle(role)
        if worker is None:
            return None
        queue.popleft()
        return self.give(state, worker)

    def withdraw(self, state: TaskState) -> None:
        """Report a queued task to the commander as failed."""
        self.queues[state.role].remove(state)
        self.notify_fail(state)
        self.forget(state)
        self._note(state, "ended")

    def forget(self, state: TaskState) -> None:
        """Close the buffer of a learner's task that has ended, and keep its counts."""
        if state.owns_buffer:
            self.totals.ended_iter = state.progress
            self.close_buffer(state.buffer_id)

    def give(self, state: TaskState, worker: WorkerInfo) -> TaskState:
        """Assign a task, which is not queued, to an idle worker; return the task."""
        state.worker = worker
        state.attempt += 1
        self.running[state.task_id] = state
        if state.owns_buffer:
            self.begin_home(state)
        self._note(state, "running")
        return state

    def begin(self, state: TaskState) -> None:
        """Record that a task's worker has built its env or policy and now works."""
        state.began_at = self.clock()
        if state.is_evaluation:
            state.run_env_steps = self.env_steps_of(state)

    def end(self, state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
        """Remove a task that ended; return its final error, and whether that error ends the run.

        ``error`` is one of ``LOSSES`` if its worker was lost, another error if its code raised.
        A lost worker's task is tried again on another worker, as often as ``Retries`` allows. A
        task that is given up ends the run if its role says so, or if it is one of many in a row.
        """
        outcome, is_fatal = self._end(state, error)
        if any(each.task_id == state.task_id for each in self.queued):
            return outcome, is_fatal
        if not is_fatal:
            self.forget(state)
            self._note(state, "ended")
        elif state.owns_buffer:  # the run ends; a resumed run continues the task
            self.totals.ended_iter = state.progress
        return outcome, is_fatal

    def _end(self, state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
        role, is_lost = self.roles[state.role], isinstance(error, LOSSES)
        self.running.pop(state.task_id, None)
        self.outage.forget(state.task_id)
        payloads = self.payloads_of(state)
        if payloads is not None and payloads.admission is not None:
            payloads.admission.forget(state.task_id)
        self.totals.unacknowledged_rows += sum(state.waiting.values())
        if state.worker is not None and is_lost:  # its driver may notice the loss first
            self.pool.remove(state.worker)
        if error is None:
            self._retries.note_finished(state)
            return None, False
        if not is_lost:
            self.notify_fail(state)
            return error, True
        self.totals.ended_env_steps += state.env_steps
        if not role.can_run(state, self.buffers):  # nobody needs its samples
            self.notify_fail(state)
            return None, False
        if self._retries.allows(state, error):
            retried = TaskState(
                state.task_id,
                state.role,
                role.retried(state),
                self.clock(),
                attempt=state.attempt,
                losses=state.losses,
                lost_env_steps=state.lost_env_steps + state.env_steps,
            )
            if role.resumes:
                retried.mark = max(state.mark, state.progress)
                retried.progress = state.progress
            self._queue(retried)
            return None, False
        self.notify_fail(state)
        outcome, is_fatal = self._retries.give_up(state, error)
        return outcome, is_fatal or role.ends_run

    def payloads_of(self, state: TaskState) -> LivePayloads | None:
        """Return the payloads that a task works for; None if its buffer is closed."""
        return self.buffers.get(state.buffer_id)

    def notify_fail(self, state: TaskState) -> None:
        """Report to the commander that a task ended without a result."""
        self.roles[state.role].task_failed(self.commander, state.task)

    def finish_collector(self, state: TaskState, finished: Mapping[str, Any]) -> bool:
        """Report a collector's result to the commander; return whether the run reached its goal."""
        if not state.is_evaluation:
            steps, state.env_steps = int(finished["step_count"]), 0
            self.totals.episodes += int(finished.get("real_episode_count", 0))
            self.totals.ended_env_steps += steps
            finished = {**finished, "step_count": steps + state.lost_env_steps}
        return bool(self.commander.finish_collector_task(state.task_id, finished))

    def progress(self, state: TaskState, report: Mapping[str, Any]) -> bool:
        """Report a collector's progress to the commander; return whether the collector is done."""
        state.progress = int(report["cur_step"])
        if not state.is_evaluation:
            state.env_steps = max(state.env_steps, int(report["cur_step"]))
            report = {**report, "cur_step": state.env_steps + state.lost_env_steps}
        self.commander.update_collector_info(state.task_id, report)
        return "collector_done" in report and bool(
            self.commander.judge_collector_finish(state.task_id, report)
        )

    def close_buffer(self, buffer_id: str) -> None:
        """Forget the payloads of a buffer, but keep their counts."""
        payloads = self.buffers.pop(buffer_id, None)
        if payloads is not None:
            # Counted once more, so that a check of the ended run finds rows that were lost.
            self.totals.ended_counts += payloads.recounted()

    def learner_of(self, buffer_id: str) -> TaskState:
        """Return the learner task that owns a buffer; raises LookupError."""
        for state in self._out:
            if state.buffer_id == buffer_id and state.owns_buffer:
                return state
        raise LookupError(f"no task has the buffer {buffer_id}")

    @property
    def _out(self) -> list[TaskState]:
        return [*self.running.values(), *self.queued]

    @property
    def queued(self) -> list[TaskState]:
        """The tasks that wait for a worker."""
        return [state for queue in self.queues.values() for state in queue]

    def commander_state(self) -> bytes:
        """Return the state of the commander, encoded."""
        return encode_json("commander", self.commander.state_dict())

    def _note(self, state: TaskState, place: Place) -> None:
        if self.note is not None:
            totals = self.totals
            counts = (totals.ended_env_steps, totals.episodes, totals.learner_tasks)
            self.note(TaskChanged(place, TaskRecord.of(state), self.commander_state(), *counts))

    def find_live(self) -> Callable[[str], bool]:
        """Return a function that returns whether a payload may still be announced or read.

        All payloads of a collector with a running task are live: while the buffer has no room,
        its stored payloads may wait for a long time before they are announced.
        """
        buffered = (each.live_ids() for each in self.buffers.values())
        known = set[str]().union(*buffered, *(state.waiting for state in self.running.values()))
        owners = {state.payload_prefix for state in self.running.values()}
        return lambda data_id: data_id in known or data_id.partition("-")[0] in owners

    def samples(self) -> SampleCounts:
        """Return the counts of all samples of the run."""
        waiting = sum(sum(each.waiting.values()) for each in self.running.values() if each.waiting)
        counts = (each.counts() for each in self.buffers.values())
        acknowledged = sum(counts, self.totals.ended_counts)
        return acknowledged + SampleCounts(waiting + self.totals.unacknowledged_rows)

    def env_steps_of(self, state: TaskState) -> int:
        """Return the env steps of the player of a task, or of the run if only one player trains."""
        players = self.commander.players()
        own = players.get(state.player or next(iter(players), ""))
        return self.env_steps if own is None else int(own.env_steps)

    @property
    def env_steps(self) -> int:
        """Env steps collected for training, including those of running tasks."""
        return self.totals.ended_env_steps + sum(
            [state.env_steps for state in self.running.values()]
        )
