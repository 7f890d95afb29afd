"""The coordinator's book: queued and running tasks, workers, leases and experience.

It is all state and no waiting: the coordinator calls it with its lock held.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.data import derive_seed
from dingsdk.errors import DingError, PoisonTaskError
from dingsdk.worker.comm.transport import LEFT, Role, WorkerInfo
from dingsdk.worker.coordinator.experience import Experience, metadata_config
from dingsdk.worker.coordinator.leases import LeaseTable
from dingsdk.worker.coordinator.pace import PaceBoard
from dingsdk.worker.coordinator.resources import WorkerPool
from dingsdk.worker.coordinator.tasks import TaskPhase, TaskState


class TaskBook:
    """Which task is where.

    Args:
        commander: Produces tasks and hears of their end.
        cfg: The coordinator's own section.
        new_buffer: Buffer config -> replay buffer.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        commander: Any,
        cfg: Mapping[str, Any],
        new_buffer: Callable[[Mapping[str, Any]], Any],
        clock: Callable[[], float],
    ) -> None:
        self.commander = commander
        self.pool = WorkerPool()
        self.leases = LeaseTable(float(cfg["lease_s"]), clock)
        self.pace = PaceBoard(
            float(cfg["straggler_factor"]), float(cfg["straggler_window_s"]), clock
        )
        self.running: dict[str, TaskState] = {}
        self.experiences: dict[str, Experience] = {}
        self._queues: dict[Role, deque[TaskState]] = {"learner": deque(), "collector": deque()}
        self._cfg = cfg
        self._new_buffer = new_buffer
        self._clock = clock
        self._ended_env_steps = 0
        self._given_up: Counter[str] = Counter()
        """Tasks of each kind that were given up since one of them finished."""

    # Tasks on their way out -------------------------------------------------------------------
    def produce(self, role: Role) -> None:
        """Ask the commander for a task when a worker is idle: tasks go out fresh."""
        queue = self._queues[role]
        if queue or not self.pool.has_idle(role):
            return
        if role == "learner":
            task = self.commander.get_learner_task()
        else:
            task = self.commander.get_collector_task()
        if task is not None:
            queue.append(TaskState(task["task_id"], role, task, self._clock()))

    def assign(self, role: Role) -> TaskState | None:
        """Give the next task to an idle worker; None while there is no task or no worker.

        A task that waited too long is reported to the commander as failed. A collector's task
        waits for the buffer that its learner's task brings.
        """
        queue = self._queues[role]
        if not queue:
            return None
        state = queue[0]
        if self._clock() - state.start_time > float(self._cfg[f"{role}_task_timeout"]):
            queue.popleft()
            self.notify_fail(state)
            return None
        if role == "collector" and state.buffer_id not in self.experiences:
            return None
        worker = self.pool.take(role)
        if worker is None:
            return None
        queue.popleft()
        state.worker, state.phase = worker, TaskPhase.ASSIGNED
        state.attempt += 1
        self.running[state.task_id] = state
        if role == "learner" and state.buffer_id not in self.experiences:
            buffer = self._new_buffer(metadata_config(state.task["replay_buffer_cfg"]))
            self.experiences[state.buffer_id] = Experience(buffer)
        return state

    def begin(self, state: TaskState) -> None:
        """Note that a task's worker has built what it needs, and works from now on."""
        assert state.worker is not None  # assigned
        state.phase = TaskPhase.RUNNING
        self.pace.start(state.worker.worker_id, state.kind)

    def note_pace(self, state: TaskState, total: int) -> None:
        """Note how far a task is: env steps, of a learner's iterations."""
        if state.worker is not None:
            self.pace.note(state.worker.worker_id, state.kind, total)

    # Tasks that ended ---------------------------------------------------------------------------
    def end(
        self, state: TaskState, phase: TaskPhase, error: DingError | None
    ) -> tuple[DingError | None, bool]:
        """Close the entry of a task; return what it ended with, and whether that ends the run.

        A lost worker's task is handed on: a learner's goes on from its newest checkpoint, with
        the same experience, a collector's begins anew. One that has cost ``max_attempts``
        workers is given up. The run goes on without a collector's task, unless as many of its
        kind in a row come to that.
        """
        state.phase = phase
        self.running.pop(state.task_id, None)
        if state.worker is not None:
            self.pace.end(state.worker.worker_id, state.kind)
        experience = self.experiences.get(state.buffer_id)
        if state.role == "learner" and experience is not None:
            experience.settle(state)
        if phase is not TaskPhase.LOST and state.worker is not None:
            self.pool.give_back(state.worker)
        if phase is TaskPhase.FINISHED or error is None:
            return None, False
        if phase is not TaskPhase.LOST:
            self.notify_fail(state)
            return error, True
        self._ended_env_steps += state.env_steps
        if experience is None:  # its learner is done: nobody needs what it would collect
            self.notify_fail(state)
            return None, False
        state.attempt -= error.facts.get("reason") == LEFT
        if state.attempt < int(self._cfg["max_attempts"]):
            self._queues[state.role].append(self._next_attempt(state))
            return None, False
        self.notify_fail(state)
        self._given_up[state.kind] += 1
        is_fatal = state.role == "learner" or self._given_up[state.kind] >= int(
            self._cfg["max_attempts"]
        )
        return _poison(state, error), is_fatal

    def notify_fail(self, state: TaskState) -> None:
        """Tell the commander that a task ended without a result."""
        if state.role == "learner":
            self.commander.notify_fail_learner_task(state.task)
        else:
            self.commander.notify_fail_collector_task(state.task)

    def finish_collector(self, state: TaskState, finished: Mapping[str, Any]) -> bool:
        """Tell the commander a collector's result; return whether the run has reached its goal."""
        self._given_up[state.kind] = 0
        if not state.is_evaluation:
            steps, state.env_steps = int(finished["step_count"]), 0
            self._ended_env_steps += steps
            finished = {**finished, "step_count": steps + state.lost_env_steps}
        return bool(self.commander.finish_collector_task(state.task_id, finished))

    def progress(self, state: TaskState, report: Mapping[str, Any]) -> bool:
        """Tell the commander a collector's progress; return whether the collector is done."""
        self.note_pace(state, int(report["cur_step"]))
        if not state.is_evaluation:
            state.env_steps = max(state.env_steps, int(report["cur_step"]))
            report = {**report, "cur_step": state.env_steps + state.lost_env_steps}
        self.commander.update_collector_info(state.task_id, report)
        return "collector_done" in report and bool(
            self.commander.judge_collector_finish(state.task_id, report)
        )

    def finish_learner(self, state: TaskState, finished: Mapping[str, Any]) -> Experience | None:
        """Tell the commander a learner's result; return its experience, to be closed."""
        buffer_id = self.commander.finish_learner_task(state.task_id, finished)
        return self.experiences.pop(buffer_id, None)

    # Looking things up ------------------------------------------------------------------------
    def experience_of(self, state: TaskState) -> Experience | None:
        return self.experiences.get(state.buffer_id)

    def take_garbage(self, experience: Experience) -> list[str]:
        """Return ids of payloads to delete; learners are told with their next batch."""
        return experience.take_garbage(
            [state for state in self.running.values() if state.role == "learner"]
        )

    @property
    def is_evaluating(self) -> bool:
        return any(state.is_evaluation for state in self.running.values())

    @property
    def live_payloads(self) -> set[str]:
        """Data ids that the buffers or a learner may still need."""
        ledgers = [experience.ledger for experience in self.experiences.values()]
        return {name for ledger in ledgers for name in ledger.names}

    def find_live(self) -> Callable[[str], bool]:
        """Return what tells whether somebody may still announce or read a payload.

        That is every one of a collector that has its task: while the buffer has no room, it
        holds what it stored for as long as the learner takes.
        """
        known = self.live_payloads.union(*(state.waiting for state in self.running.values()))
        owners = {state.payload_prefix for state in self.running.values()}
        return lambda data_id: data_id in known or data_id.partition("-")[0] in owners

    @property
    def evicted(self) -> dict[str, int]:
        """Samples that left the buffers, by reason."""
        total: Counter[str] = Counter()
        for experience in self.experiences.values():
            total.update(experience.ledger.evicted_rows)
        return dict(total)

    @property
    def env_steps(self) -> int:
        """Env steps collected for training, running tasks included."""
        return self._ended_env_steps + sum(state.env_steps for state in self.running.values())

    def join(self, info: WorkerInfo) -> None:
        self.pace.forget(info.worker_id)  # another process, maybe on another host
        self.pool.add(info)
        self.leases.grant(info.worker_id)

    def lose(self, info: WorkerInfo) -> None:
        """Forget a worker, unless it has come back as another incarnation."""
        if self.pool.remove(info):
            self.leases.end(info.worker_id)
            self.pace.forget(info.worker_id)

    def silent_workers(self) -> list[WorkerInfo]:
        """Return the workers whose lease is over; their leases are gone afterwards."""
        found = (self.pool.get(worker_id) for worker_id in self.leases.expired())
        return [worker for worker in found if worker is not None]

    # ----------------------------------------------------------------------------------------
    def _next_attempt(self, state: TaskState) -> TaskState:
        if state.role == "learner":
            # The learner knows where its checkpoints are; that may be another host.
            task = {**state.task, "resume": True}
        else:
            task = dict(state.task)
            cfg = task["collector_cfg"]
            if cfg.get("seed") is not None and not state.is_evaluation:
                # Other episodes than the ones whose samples came before the loss.
                seed = derive_seed(int(cfg["seed"]), "attempt", state.attempt)
                task["collector_cfg"] = {**cfg, "seed": seed}
        return TaskState(
            state.task_id,
            state.role,
            task,
            self._clock(),
            attempt=state.attempt,
            lost_env_steps=state.lost_env_steps + state.env_steps,
        )


def _poison(state: TaskState, cause: DingError) -> PoisonTaskError:
    worker_id = "" if state.worker is None else state.worker.worker_id
    error = PoisonTaskError(
        f"{state.kind} task {state.task_id} is given up: {state.attempt} workers were lost over "
        f"it, at last {worker_id!r} ({cause})",
        task_id=state.task_id,
        attempts=state.attempt,
        worker_id=worker_id,
    )
    error.__cause__ = cause
    return error
