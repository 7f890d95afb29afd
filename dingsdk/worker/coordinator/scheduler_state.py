"""The state of a run: workers, their leases, tasks, the payloads of buffers, and counters.

It holds state only and never waits: the coordinator calls it with its condition held.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dingsdk.data.container import encode_json
from dingsdk.errors import DingError, PoisonTaskError, TaskTimeoutError, WorkerLostError
from dingsdk.worker.comm.transport import LEFT, WorkerInfo
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.clock import RunClock
from dingsdk.worker.coordinator.journal import Fact, Place, TaskChanged, TaskRecord
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.outage import StorageOutage
from dingsdk.worker.coordinator.pace import PaceBoard
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.sample_counts import SampleCounts

LOSSES = (WorkerLostError, TaskTimeoutError)
"""Errors that end a task because its worker was lost."""
LOSS_WINDOW_S = 600.0
"""How long a lost worker counts against its task."""
LEAST_GRANT, LARGEST_GRANT = 64, 4096
"""Env steps that a collector may get at once: others wait for those that it does not take."""
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

    def renew(self, worker_id: str) -> bool:
        """Renew a lease; False for a worker that is not joined."""
        if worker_id not in self._workers:
            return False
        self._lease_ends[worker_id] = self._clock() + self._lease_s
        return True

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
        self._given_up: Counter[str] = Counter()
        """By kind: number of tasks given up since a task of the kind last finished."""

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

    def produce(self, role: str) -> None:
        """Request a task if a worker is idle and no task is queued, so that tasks are recent."""
        self._produce(role, lambda: self.roles[role].next_task(self.commander))

    def produce_evaluation(self) -> None:
        """As ``produce``, but only for evaluations; other queued collector tasks are withdrawn."""
        for state in [each for each in self.queues["collector"] if not each.is_evaluation]:
            self._withdraw(state)
        self._produce("collector", self.commander.get_eval_task)

    def _produce(self, role: str, ask: Callable[[], Task | None]) -> None:
        if self.queues[role] or self.idle(role) is None:
            return
        task = ask()
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
            self._withdraw(state)
            return None
        if not self.roles[role].can_run(state, self.buffers):
            return None
        worker = self.idle(role)
        if worker is None:
            return None
        queue.popleft()
        return self._give(state, worker)

    def assign_last_evaluation(self) -> tuple[TaskState | None, bool]:
        """Assign a last evaluation to a worker; return it, and whether to call again.

        It waits until all other tasks have ended, as the learner publishes its last policy at its
        end. Queued collector tasks are withdrawn to free their places.
        """
        worker = self.idle("collector")
        if self.running or worker is None:
            return None, True
        for state in list(self.queues["collector"]):
            self._withdraw(state)
        task = self.commander.get_last_eval_task()
        if task is None:
            return None, False
        state = TaskState(task["task_id"], "collector", task, self.clock())
        return self._give(state, worker), False

    def is_trained_out(self) -> bool:
        """Return whether no task collects and no learner has a batch left to train on."""
        return not self.queues["learner"] and not any(
            state.kind == "collector" or (state.role == "learner" and self._can_train(state))
            for state in self.running.values()
        )

    def _can_train(self, state: TaskState) -> bool:
        """Return whether a learner trains or can get a batch."""
        payloads = self.buffers.get(state.buffer_id)
        return payloads is None or payloads.can_train

    def _withdraw(self, state: TaskState) -> None:
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

    def _give(self, state: TaskState, worker: WorkerInfo) -> TaskState:
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

    def note_progress(self, state: TaskState, total: int) -> None:
        """Store the progress of a task: env steps, or iterations of a learner."""
        state.progress = total

    def end(self, state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
        """Remove a task that ended; return its final error, and whether that error ends the run.

        ``error`` is one of ``LOSSES`` if its worker was lost, another error if its code raised.
        A lost worker's task is tried again on another worker. It is given up after
        ``max_attempts`` lost workers; losses that were followed by progress, or are older than
        ``LOSS_WINDOW_S``, do not count. A task that is given up ends the run if its role says so,
        or if ``max_attempts`` tasks of its kind were given up in a row.
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
            self._given_up[state.kind] = 0
            return None, False
        if not is_lost:
            self.notify_fail(state)
            return error, True
        self.totals.ended_env_steps += state.env_steps
        if not role.can_run(state, self.buffers):  # nobody needs its samples
            self.notify_fail(state)
            return None, False
        if error.facts.get("reason") == LEFT:
            state.attempt -= 1
        else:
            state.losses = self._losses(state)
        if len(state.losses) < self._cfg.max_attempts:
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
        self._given_up[state.kind] += 1
        is_fatal = role.ends_run or self._given_up[state.kind] >= self._cfg.max_attempts
        return _poison(state, error), is_fatal

    def _losses(self, state: TaskState) -> tuple[float, ...]:
        """Return the losses that count against a task whose worker was just lost."""
        now = self.clock()
        has_progressed = state.progress > state.mark and now - state.began_at >= self._cfg.lease_s
        before = () if has_progressed else state.losses
        return (*(at for at in before if now - at < LOSS_WINDOW_S), now)

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
        self.note_progress(state, int(report["cur_step"]))
        if not state.is_evaluation:
            state.env_steps = max(state.env_steps, int(report["cur_step"]))
            report = {**report, "cur_step": state.env_steps + state.lost_env_steps}
        self.commander.update_collector_info(state.task_id, report)
        return "collector_done" in report and bool(
            self.commander.judge_collector_finish(state.task_id, report)
        )

    def grant_steps(self, state: TaskState, last_env_step: int) -> int:
        """Return how many env steps a collecting task may take in total.

        Steps are granted in shares, so that all collectors together take ``last_env_step`` steps.
        """
        collecting = [each for each in self.running.values() if each.kind == "collector"]
        others = (
            max(0, each.step_limit - each.env_steps) for each in collecting if each is not state
        )
        left = max(0.0, last_env_step - self.env_steps - sum(others))
        count = max(len(collecting), self.roles["collector"].worker_num)
        share = max(LEAST_GRANT, math.ceil(left / max(1, count)))
        more = int(min(left, share, LARGEST_GRANT))
        state.step_limit = max(state.step_limit, state.env_steps + more)
        return int(state.step_limit)

    def finish_learner(self, state: TaskState, finished: Mapping[str, Any]) -> None:
        """Report a learner's result to the commander, and close its buffer."""
        buffer_id = self.commander.finish_learner_task(state.task_id, finished)
        self.close_buffer(buffer_id)

    def close_buffer(self, buffer_id: str) -> None:
        """Forget the payloads of a buffer, but keep their counts."""
        payloads = self.buffers.pop(buffer_id, None)
        if payloads is not None:
            # Counted once more, so that a check of the ended run finds rows that were lost.
            self.totals.ended_counts += payloads.recounted()

    def change_limit(self, learner_cfg: Mapping[str, Any]) -> None:
        """Set ``train_iterations`` of this section for all running and queued learner tasks."""
        limit = {"train_iterations": learner_cfg["train_iterations"]}
        for state in (*self.running.values(), *self.queues["learner"]):
            if state.role == "learner":
                task = state.task
                state.task = {**task, "learner_cfg": {**task["learner_cfg"], **limit}}

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

    @property
    def orphans(self) -> list[TaskState]:
        """Running tasks of an earlier coordinator whose workers have not rejoined."""
        return [state for state in self.running.values() if state.worker is None]

    def orphan(self, task_id: str, payload_prefix: str, worker: WorkerInfo) -> TaskState | None:
        """Return the task that waits for a worker to rejoin; None if it waits for another one."""
        state = self.running.get(task_id)
        if state is None or state.worker is not None or state.role != worker.role:
            return None
        return state if state.payload_prefix == payload_prefix else None

    def expire_orphan(self, state: TaskState) -> None:
        """Let another worker try a task whose worker did not rejoin."""
        text = f"the worker of {state.kind} task {state.task_id} has not come back"
        self.end(state, WorkerLostError(text, reason=LEFT))

    def commander_state(self) -> bytes:
        """Return the state of the commander, encoded."""
        return encode_json("commander", self.commander.state_dict())

    def _note(self, state: TaskState, place: Place) -> None:
        if self.note is not None:
            totals = self.totals
            counts = (totals.ended_env_steps, totals.episodes, totals.learner_tasks)
            self.note(TaskChanged(place, TaskRecord.of(state), self.commander_state(), *counts))

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation is running."""
        return any(state.is_evaluation for state in self.running.values())

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


def _poison(state: TaskState, cause: DingError) -> PoisonTaskError:
    worker_id = "" if state.worker is None else state.worker.worker_id
    error = PoisonTaskError(
        f"{state.kind} task {state.task_id} is given up: {len(state.losses)} workers were lost "
        f"over it, at last {worker_id!r} ({cause})",
        task_id=state.task_id,
        attempts=len(state.losses),
        worker_id=worker_id,
    )
    error.__cause__ = cause
    return error
