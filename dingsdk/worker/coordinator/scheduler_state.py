"""The state of a run: workers, their leases, tasks, the payloads of buffers, and counters.

It holds state only and never waits: the coordinator calls it with its condition held. It can be
restored from the journal.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dingsdk.data.container import decode_json, encode_json
from dingsdk.errors import (
    CheckpointCorruptError,
    ConflictError,
    DingError,
    PoisonTaskError,
    ProtocolError,
    SchemaMismatchError,
    StorageFullError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.worker.comm.transport import LEFT, WorkerInfo
from dingsdk.worker.commander.base import BaseParallelCommander, Task
from dingsdk.worker.coordinator.journal import (
    Assigned,
    EvaluationRecorded,
    Fact,
    Progressed,
    Pushed,
    Queued,
    Recovered,
    Settled,
    TaskEnded,
    TaskRecord,
    TrainingBegan,
)
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads
from dingsdk.worker.coordinator.pace import PaceBoard
from dingsdk.worker.coordinator.role import Role
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.policy_lag import PolicyLag
from dingsdk.worker.sample_counts import SampleCounts

_log = logging.getLogger(__name__)

LOSSES = (WorkerLostError, TaskTimeoutError)
"""Errors that end a task because its worker was lost."""
LOSS_WINDOW_S = 600.0
"""How long a lost worker counts against its task."""
LEAST_GRANT, LARGEST_GRANT = 64, 4096
"""Env steps that a collector may get at once: others wait for those that it does not take."""
_COMMANDER_BYTES = 1 << 30
"""Largest saved state of a commander."""
TASK_TIMEOUT_S = 600.0
"""How long a task may wait for a worker if the role has no ``<role>_task_timeout``."""


class WorkerPool:
    """The joined workers, each idle or busy, and the end of each worker's lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, WorkerInfo] = {}
        self._lease_ends: dict[str, float] = {}
        self._idle: dict[str, None] = {}  # a dict for its order: the longest idle comes first

    def add(self, info: WorkerInfo) -> None:
        """Add an idle worker with a fresh lease."""
        self._workers[info.worker_id] = info
        self._idle[info.worker_id] = None
        self.renew(info.worker_id)

    def remove(self, info: WorkerInfo) -> bool:
        """Remove a worker; False if its id is unknown or now belongs to another incarnation."""
        if self._workers.get(info.worker_id) != info:
            return False
        del self._workers[info.worker_id], self._lease_ends[info.worker_id]
        self._idle.pop(info.worker_id, None)
        return True

    def has_idle(self, role: str) -> bool:
        """Return whether a worker of the role has no task."""
        return any(self._workers[worker_id].role == role for worker_id in self._idle)

    def take(self, role: str) -> WorkerInfo | None:
        """Make the longest idle worker of a role busy and return it; None if there is none."""
        for worker_id in self._idle:
            if self._workers[worker_id].role == role:
                del self._idle[worker_id]
                return self._workers[worker_id]
        return None

    def take_one(self, info: WorkerInfo) -> None:
        """Make a worker busy."""
        self._idle.pop(info.worker_id, None)

    def give_back(self, info: WorkerInfo) -> None:
        """Make a worker idle again, unless it was lost since."""
        if self._workers.get(info.worker_id) == info:
            self._idle[info.worker_id] = None

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


class StorageOutage:
    """How long workers have been waiting for free storage. The caller locks.

    Args:
        limit_s: Seconds without anything stored after which the run ends.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._waiting: dict[str, str] = {}
        self._since = self._still_since = 0.0

    @property
    def text(self) -> str:
        """The error of the worker that waits longest; empty if no worker waits."""
        return next(iter(self._waiting.values())) if self._waiting else ""

    def note(self, task_id: str, why: str) -> None:
        """Store why a task's worker waits; empty if it does not wait."""
        if not (why or self._waiting):
            return
        had, now = bool(self._waiting), self._clock()
        if why:
            self._waiting.setdefault(task_id, why)
        else:
            self._waiting.pop(task_id, None)
        if self._waiting and not had:
            self._since = self._still_since = now
            text = "there is no room in the storage, so the run waits for up to %.0f s: %s"
            _log.warning(text, self._limit_s, why)
        elif had and not self._waiting:
            _log.warning("there is room in the storage again, after %.1f s", now - self._since)

    def forget(self, task_id: str) -> None:
        """Do not count a task that ended while it may have waited; there is no room yet."""
        self._waiting.pop(task_id, None)

    def note_progress(self) -> None:
        """Note that something was stored; the time limit starts again."""
        self._still_since = self._clock()

    def failure(self) -> StorageFullError | None:
        """Return the error that ends the run if nothing could be stored for too long, else None."""
        still_s = self._clock() - self._still_since
        if not self._waiting or still_s <= self._limit_s:
            return None
        return StorageFullError(
            f"nothing could be stored for {still_s:.0f} s "
            f"(system.coordinator.storage_timeout_s): {self.text}; make room, or let the run "
            "write to another disk (exp_name, system.transport.data_dir)",
            reason="timeout",
        )


class QuietWatch:
    """Detects that a run makes no progress for ``limit_s``. The caller locks."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._progress: object = None
        self._since = clock()
        self._has_said = False

    def is_news(self, progress: object) -> bool:
        """Return True once each time that ``progress`` has stayed the same for ``limit_s``."""
        if progress != self._progress:
            self._progress, self._since, self._has_said = progress, self._clock(), False
        elif not self._has_said and self._clock() - self._since >= self.limit_s:
            self._has_said = True
            return True
        return False


class SchedulerState:
    """The tasks of a run (queued or running), its workers, buffers and counters. The caller locks.

    Args:
        new_payloads: Returns the empty payloads of the buffer of a learner's task.
        first_env_steps: Env steps that were collected before the run.

    Attributes:
        learner_tasks: How many learner tasks have finished their training.
        policy_lag: How old trained rows were; None if it is not measured.
        stopped_s: Seconds in which this process was stopped, so that it could receive nothing; they
            count neither for leases nor for other limits.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        commander: BaseParallelCommander,
        cfg: CoordinatorSection,
        clock: Callable[[], float],
        new_payloads: Callable[[TaskState], LivePayloads],
        first_env_steps: int = 0,
    ) -> None:
        self.commander = commander
        self._clock = clock
        self.stopped_s = 0.0
        self.pool = WorkerPool(cfg.lease_s, self._now)
        self.outage = StorageOutage(cfg.storage_timeout_s, self._now)
        self.quiet = QuietWatch(cfg.quiet_after_s, self._now)
        self.pace = PaceBoard(cfg.straggler_factor, cfg.straggler_window_s, self._now)
        self.running: dict[str, TaskState] = {}
        self.buffers: dict[str, LivePayloads] = {}
        self._roles = roles
        self._queues: dict[str, deque[TaskState]] = {name: deque() for name in roles}
        self._cfg = cfg
        self._new_payloads = new_payloads
        self._ended_env_steps = first_env_steps
        self.episodes = 0
        """Complete episodes of collector tasks that have ended."""
        self._ended_counts = SampleCounts()
        self.unacknowledged_rows = 0
        """Rows that were announced and will never be acknowledged."""
        self.note: Callable[[Fact], None] | None = None
        """Called with each fact about tasks, once it is true."""
        self._given_up: Counter[str] = Counter()
        """By kind: number of tasks given up since a task of the kind last finished."""
        self._collecting_since: float | None = None
        self._iterations: dict[str, int] = {}  # of learner tasks that are out, or were given up
        self._ended_iter = 0
        self.learner_tasks = 0
        self.policy_lag: PolicyLag | None = None
        self.evaluations: list[Mapping[str, Any]] = []

    def _now(self) -> float:
        return self._clock() - self.stopped_s

    @property
    def train_iter(self) -> int:
        """The learner's newest iteration; with several learners, the lowest of them."""
        out = (n for task_id, n in self._iterations.items() if self.has_task(task_id))
        return min(out, default=max(self._ended_iter, *self._iterations.values(), 0))

    def note_iteration(self, task_id: str, train_iter: int) -> None:
        """Store the iteration of a learner task."""
        self._iterations[task_id] = train_iter

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first collector got its task, with earlier coordinators; 0 before."""
        since = self._collecting_since
        return 0.0 if since is None else self._clock() - since

    def begin_collecting(self) -> None:
        """Start the clock, unless it is running."""
        if self._collecting_since is None:
            self._collecting_since = self._clock()

    def _set_elapsed(self, seconds: float) -> None:
        self._collecting_since = self._clock() - seconds if seconds > 0 else None

    def begin_home(self, state: TaskState) -> None:
        """Let another worker hold the rows of a learner's task; the first one opens the buffer."""
        payloads = self.buffers.get(state.buffer_id)
        if payloads is None:
            payloads = self.buffers[state.buffer_id] = self._new_payloads(state)
            self._iterations.setdefault(state.task_id, 0)
        payloads.restart()

    def note_policy_lag(self) -> None:
        """Store the lag of trained rows; with several learners, the largest mean lag."""
        found = [each.lag for each in self.buffers.values()]
        lags = [lag for lag in found if lag is not None]
        self.policy_lag = max(lags, key=lambda lag: lag.mean, default=self.policy_lag)

    def produce(self, role: str) -> None:
        """Request a task if a worker is idle and no task is queued, so that tasks are recent."""
        self._produce(role, lambda: self._roles[role].next_task(self.commander))

    def produce_evaluation(self) -> None:
        """As ``produce``, but only for evaluations; other queued collector tasks are withdrawn."""
        for state in [each for each in self._queues["collector"] if not each.is_evaluation]:
            self._withdraw(state)
        self._produce("collector", self.commander.get_eval_task)

    def _produce(self, role: str, ask: Callable[[], Task | None]) -> None:
        queue = self._queues[role]
        if queue or not self.pool.has_idle(role):
            return
        task = ask()
        if task is not None:
            queue.append(state := TaskState(task["task_id"], role, task, self._now()))
            if self.note is not None:
                self.note(Queued(_record(state), self._commander_state()))

    def assign(self, role: str) -> TaskState | None:
        """Assign the next task to an idle worker and return it; None without a task or a worker.

        A task that waited too long is reported to the commander as failed.
        """
        queue = self._queues[role]
        if not queue:
            return None
        state = queue[0]
        limit_s = float(getattr(self._cfg, f"{role}_task_timeout", TASK_TIMEOUT_S))
        if self._now() - state.start_time > limit_s:
            self._withdraw(state)
            return None
        if not self._roles[role].can_run(state, self.buffers):
            return None
        worker = self.pool.take(role)
        if worker is None:
            return None
        queue.popleft()
        return self._give(state, worker)

    def assign_last_evaluation(self) -> tuple[TaskState | None, bool]:
        """Assign a last evaluation to a worker; return it, and whether to call again.

        It waits until all other tasks have ended, as the learner publishes its last policy at its
        end. Queued collector tasks are withdrawn to free their places.
        """
        if self.running or not self.pool.has_idle("collector"):
            return None, True
        for state in list(self._queues["collector"]):
            self._withdraw(state)
        task = self.commander.get_last_eval_task()
        worker = None if task is None else self.pool.take("collector")
        if task is None or worker is None:
            return None, False
        state = TaskState(task["task_id"], "collector", task, self._now())
        return self._give(state, worker), False

    def is_trained_out(self) -> bool:
        """Return whether no task collects and no learner has a batch left to train on."""
        return not self._queues["learner"] and not any(
            state.kind == "collector" or (state.role == "learner" and self._can_train(state))
            for state in (*self.running.values(), *self.orphans)
        )

    def _can_train(self, state: TaskState) -> bool:
        """Return whether a learner trains or can get a batch."""
        payloads = self.buffers.get(state.buffer_id)
        return payloads is None or payloads.can_train

    def _withdraw(self, state: TaskState) -> None:
        """Report a queued task to the commander as failed."""
        self._queues[state.role].remove(state)
        self.notify_fail(state)
        self._note_over(state)

    def _give(self, state: TaskState, worker: WorkerInfo) -> TaskState:
        state.worker = worker
        state.attempt += 1
        self.running[state.task_id] = state
        if state.owns_buffer:
            self.begin_home(state)
        if self.note is not None:
            self.note(Assigned(state.task_id, state.attempt, state.payload_prefix))
        return state

    def why_quiet(self) -> str:
        """Return what a run without progress waits for; empty while there is progress.

        Also empty if the run waits for free storage: ``StorageOutage`` logs that.
        """
        running = self.running.values()
        progress = (self._ended_env_steps, [(each.task_id, each.progress) for each in running])
        if not self.quiet.is_news(progress) or self.outage.text:
            return ""
        joined, causes = self.pool.counts(), []
        for name, role in self._roles.items():
            if role.worker_num and not joined[name]:
                causes.append(f"no {name} has joined")
            elif self.pool.has_idle(name) and not self._queues[name]:
                commander = self.commander
                kind = getattr(commander, "config", {}).get("type", type(commander).__name__)
                causes.append(f"commander {kind!r} has issued no task for an idle {name}")
        for state in running:
            worker_id = "" if state.worker is None else state.worker.worker_id
            what = f"waits for {state.waits_for}" if state.waits_for else "has reported no progress"
            causes.append(f"{state.kind} {worker_id} {what}")
        rows = sum(each.count() for each in self.buffers.values())
        return "; ".join([*causes, f"the replay buffer holds {rows} rows"])

    def begin(self, state: TaskState) -> None:
        """Record that a task's worker has built its env or policy and now works."""
        assert state.worker is not None  # assigned
        state.began_at = self._now()
        if state.is_evaluation:
            state.run_env_steps = self.env_steps_of(state)
        self.pace.start(state.worker.worker_id, state.kind)

    def note_progress(self, state: TaskState, total: int) -> None:
        """Store the progress of a task: env steps, or iterations of a learner."""
        state.progress = max(state.progress, total)
        if state.worker is not None:
            self.pace.note(state.worker.worker_id, state.kind, total)

    def end(self, state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
        """Remove a task that ended; return its final error, and whether that error ends the run.

        ``error`` is one of ``LOSSES`` if its worker was lost, another error if its code raised.
        A lost worker's task is tried again on another worker. It is given up after
        ``max_attempts`` lost workers; losses that were followed by progress, or are older than
        ``LOSS_WINDOW_S``, do not count. A task that is given up ends the run if its role says so,
        or if ``max_attempts`` tasks of its kind were given up in a row.
        """
        queue = self._queues[state.role]
        before = len(queue)
        outcome, is_fatal = self._end(state, error)
        if not is_fatal:  # a fatal error ends the run; a resumed run continues the task
            self._note_over(state, queue[-1] if len(queue) > before else None)
        return outcome, is_fatal

    def _end(self, state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
        role, is_lost = self._roles[state.role], isinstance(error, LOSSES)
        self.running.pop(state.task_id, None)
        self.unacknowledged_rows += sum(state.waiting.values())
        if state.worker is not None:
            self.pace.end(state.worker.worker_id, state.kind)
            if not is_lost:
                self.pool.give_back(state.worker)
        if error is None:
            self._given_up[state.kind] = 0
            return None, False
        if not is_lost:
            self.notify_fail(state)
            return error, True
        self._ended_env_steps += state.env_steps
        if not role.can_run(state, self.buffers):  # nobody needs its samples
            self.notify_fail(state)
            return None, False
        if error.facts.get("reason") == LEFT:
            state.attempt -= 1
        else:
            state.losses = self._losses(state)
        if len(state.losses) < self._cfg.max_attempts:
            self._queues[state.role].append(
                TaskState(
                    state.task_id,
                    state.role,
                    role.retried(state),
                    self._now(),
                    attempt=state.attempt,
                    losses=state.losses,
                    mark=max(state.mark, state.progress) if role.resumes else 0,
                    lost_env_steps=state.lost_env_steps + state.env_steps,
                )
            )
            return None, False
        self.notify_fail(state)
        self._given_up[state.kind] += 1
        is_fatal = role.ends_run or self._given_up[state.kind] >= self._cfg.max_attempts
        return _poison(state, error), is_fatal

    def _losses(self, state: TaskState) -> tuple[float, ...]:
        """Return the losses that count against a task whose worker was just lost."""
        now = self._now()
        has_progressed = state.progress > state.mark and now - state.began_at >= self._cfg.lease_s
        before = () if has_progressed else state.losses
        return (*(at for at in before if now - at < LOSS_WINDOW_S), now)

    def has_task(self, task_id: str) -> bool:
        """Return whether a task is running or queued."""
        return any(state.task_id == task_id for state in self._out)

    def notify_fail(self, state: TaskState) -> None:
        """Report to the commander that a task ended without a result."""
        self._roles[state.role].task_failed(self.commander, state.task)

    def finish_collector(self, state: TaskState, finished: Mapping[str, Any]) -> bool:
        """Report a collector's result to the commander; return whether the run reached its goal."""
        if not state.is_evaluation:
            steps, state.env_steps = int(finished["step_count"]), 0
            self.episodes += int(finished.get("real_episode_count", 0))
            self._ended_env_steps += steps
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
        count = max(len(collecting), self._roles["collector"].worker_num)
        share = max(LEAST_GRANT, math.ceil(left / max(1, count)))
        more = int(min(left, share, LARGEST_GRANT))
        state.step_limit = max(state.step_limit, state.env_steps + more)
        return int(state.step_limit)

    def finish_learner(self, state: TaskState, finished: Mapping[str, Any]) -> None:
        """Report a learner's result to the commander, and close its buffer."""
        buffer_id = self.commander.finish_learner_task(state.task_id, finished)
        self.close_buffer(buffer_id)
        self._end_learner(state.task_id)

    def _end_learner(self, task_id: str) -> None:
        """Record that a learner task has ended, and is not tried again."""
        self._ended_iter = self._iterations.pop(task_id, self._ended_iter)

    def close_buffer(self, buffer_id: str) -> None:
        """Forget the payloads of a buffer, but keep their counts."""
        payloads = self.buffers.pop(buffer_id, None)
        if payloads is not None:
            # Counted once more, so that a check of the ended run finds rows that were lost.
            self._ended_counts += replace(payloads.counts(), live=payloads.count_live())

    def change_limit(self, learner_cfg: Mapping[str, Any]) -> None:
        """Set ``train_iterations`` of this section for all running and queued learner tasks."""
        limit = {"train_iterations": learner_cfg["train_iterations"]}
        for state in (*self.running.values(), *self._queues["learner"]):
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
        return [*self.running.values(), *self._queued]

    @property
    def _queued(self) -> list[TaskState]:
        return [state for queue in self._queues.values() for state in queue]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a restarted coordinator needs, as plain data."""
        return {
            "commander": self._commander_state(),
            "running": [msgspec.to_builtins(_record(state)) for state in self.running.values()],
            "queued": [msgspec.to_builtins(_record(state)) for state in self._queued],
            "buffers": {name: each.state_dict() for name, each in self.buffers.items()},
            "ended_env_steps": self._ended_env_steps,
            "episodes": self.episodes,
            "ended_counts": msgspec.to_builtins(self._ended_counts),
            "unacknowledged_rows": self.unacknowledged_rows,
            "iterations": dict(self._iterations),
            "ended_iter": self._ended_iter,
            "learner_tasks": self.learner_tasks,
            "elapsed_s": self.elapsed_s,
            "evaluations": [dict(each) for each in self.evaluations],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of ``state_dict`` into this new object.

        Its running tasks wait for their workers to rejoin, see ``orphans``.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: it is not a state, or of another run.
        """
        try:
            self._load(state)
        except DingError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(
                f"this is no state of a coordinator: {type(error).__name__}: {error}"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self._load_commander(state["commander"])
        for record in state["queued"]:
            self._restore(msgspec.convert(record, TaskRecord))
        for record in state["running"]:
            found = self._restore(msgspec.convert(record, TaskRecord))
            self._restore_given(found, found.attempt, found.payload_prefix)
        for buffer_id, content in state["buffers"].items():
            payloads = self._new_payloads(self.learner_of(buffer_id))
            payloads.load_state_dict(content)
            self.buffers[buffer_id] = payloads
        self._ended_env_steps, self.episodes = int(state["ended_env_steps"]), int(state["episodes"])
        self._ended_counts = msgspec.convert(state["ended_counts"], SampleCounts)
        self.unacknowledged_rows = int(state["unacknowledged_rows"])
        self._iterations = {name: int(each) for name, each in state["iterations"].items()}
        self._ended_iter, self.learner_tasks = int(state["ended_iter"]), int(state["learner_tasks"])
        self._set_elapsed(float(state["elapsed_s"]))
        self.evaluations = [dict(each) for each in state["evaluations"]]

    def recover(self, recovered: Recovered) -> list[str]:
        """Restore the content of a journal; return ids of payloads to delete.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: as ``load_state_dict``, or a fact does
                not fit the facts before it.
        """
        note, self.note = self.note, None
        if recovered.state is not None:
            self.load_state_dict(recovered.state)
        for fact in recovered.facts:
            try:
                self.apply(fact)
            except (LookupError, ValueError) as error:
                raise CheckpointCorruptError(
                    f"the journal has a fact that does not fit those before it: {fact!r:.200}"
                ) from error
        self.note = note
        if recovered.state is not None or recovered.facts:
            self.commander.resume()
        settled = {each.task_id: each for each in recovered.facts if isinstance(each, Settled)}
        for task_id, fact in settled.items():
            info = {"learner_step": fact.train_iter, "learner_done": False, "priority_info": {}}
            self.commander.update_learner_info(task_id, info)
        for state in self.running.values():
            if not state.is_evaluation and state.env_steps:
                report = {"cur_step": state.env_steps + state.lost_env_steps}
                self.commander.update_collector_info(state.task_id, report)
        self.note_policy_lag()
        return [name for each in self.buffers.values() for name in each.take_garbage()]

    def apply(self, fact: Fact) -> None:
        """Apply a fact of an earlier coordinator."""
        if isinstance(fact, Queued):
            self._restore(fact.task)
            self._load_commander(fact.commander)
        elif isinstance(fact, Assigned):
            found = self._find(fact.task_id)
            self._restore_given(found, fact.attempt, fact.payload_prefix)
            if found.owns_buffer:
                self.begin_home(found)
        elif isinstance(fact, TaskEnded):
            found = self._find(fact.task_id)
            self.running.pop(fact.task_id, None)
            if found in self._queues[found.role]:
                self._queues[found.role].remove(found)
            self._ended_env_steps, self.episodes = fact.env_steps, fact.episodes
            self.learner_tasks = fact.learner_tasks
            if fact.retried is not None:
                self._restore(fact.retried)
            if fact.has_closed:
                self._end_learner(fact.task_id)
                self.close_buffer(found.buffer_id)
            self._load_commander(fact.commander)
        elif isinstance(fact, EvaluationRecorded):
            self.evaluations.append(fact.evaluation)
        elif isinstance(fact, Progressed):
            self._set_elapsed(fact.elapsed_s)
            self.running[fact.task_id].env_steps = fact.env_steps
        elif isinstance(fact, Pushed):
            try:
                self.buffers[fact.buffer_id].push(msgspec.structs.asdict(fact), fact.env_steps)
            except (ConflictError, ProtocolError, SchemaMismatchError) as error:
                _log.debug("refused, as it was before: %s", error)
        elif isinstance(fact, Settled | TrainingBegan):
            self._apply_training(fact)

    def _apply_training(self, fact: Settled | TrainingBegan) -> None:
        payloads = self.buffers[self.running[fact.task_id].buffer_id]
        self.note_iteration(fact.task_id, fact.train_iter)
        if isinstance(fact, TrainingBegan):
            if not isinstance(payloads, OnPolicyPayloads):
                raise ValueError("the journal is of an on-policy run")
            payloads.begin_training(fact.train_iter)
        else:
            payloads.settle({**fact.info, "learner_step": fact.train_iter})

    @property
    def orphans(self) -> list[TaskState]:
        """Running tasks of an earlier coordinator whose workers have not rejoined."""
        return [state for state in self.running.values() if state.worker is None]

    def adopt(self, task_id: str, payload_prefix: str, worker: WorkerInfo) -> TaskState | None:
        """Assign its kept task to a worker that rejoins; None if the task is no longer its own."""
        state = self.orphan(task_id, payload_prefix, worker)
        if state is not None:
            self.pool.take_one(worker)
            state.worker = worker
        return state

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

    def _restore(self, record: TaskRecord) -> TaskState:
        state = TaskState(**msgspec.structs.asdict(record), start_time=self._now())
        self._queues[record.role].append(state)
        return state

    def _restore_given(self, state: TaskState, attempt: int, payload_prefix: str) -> None:
        self._queues[state.role].remove(state)
        state.attempt, state.payload_prefix = attempt, payload_prefix
        state.step_limit = math.inf  # its collector may take steps before it rejoins
        self.running[state.task_id] = state

    def _find(self, task_id: str) -> TaskState:
        for state in self._out:
            if state.task_id == task_id:
                return state
        raise LookupError(f"there is no task {task_id}")

    def _commander_state(self) -> bytes:
        return encode_json("commander", self.commander.state_dict())

    def _load_commander(self, state: bytes) -> None:
        self.commander.load_state_dict(decode_json("commander", state, _COMMANDER_BYTES))

    def _note_over(self, state: TaskState, retried: TaskState | None = None) -> None:
        if self.note is not None:
            again = None if retried is None else _record(retried)
            has_closed = state.owns_buffer and state.buffer_id not in self.buffers
            counts = (self._ended_env_steps, self._commander_state(), again, self.episodes)
            self.note(TaskEnded(state.task_id, *counts, self.learner_tasks, has_closed))

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
        acknowledged = sum(counts, self._ended_counts)
        return acknowledged + SampleCounts(waiting + self.unacknowledged_rows)

    def env_steps_of(self, state: TaskState) -> int:
        """Return the env steps of the player of a task, or of the run if only one player trains."""
        players = self.commander.players()
        own = players.get(state.player or next(iter(players), ""))
        return self.env_steps if own is None else int(own.env_steps)

    @property
    def env_steps(self) -> int:
        """Env steps collected for training, including those of running tasks."""
        return self._ended_env_steps + sum([state.env_steps for state in self.running.values()])

    def join(self, info: WorkerInfo) -> None:
        """Add a worker that joined."""
        self.pace.forget(info.worker_id)  # another process, maybe on another host
        self.pool.add(info)

    def lose(self, info: WorkerInfo) -> None:
        """Remove a worker, unless it has rejoined as another incarnation."""
        if self.pool.remove(info):
            self.pace.forget(info.worker_id)


def _record(state: TaskState) -> TaskRecord:
    fields = {name: getattr(state, name) for name in TaskRecord.__struct_fields__}
    return TaskRecord(**{**fields, "task": dict(state.task)})


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
