"""Random histories of workers, leases and tasks: no task ends twice and none is lost.

The machine simulates everything around the scheduler's state: workers that join, stop answering,
leave and come back; drivers that report the end of a task, possibly long after the loss of its
worker; and time. The commander is a real one, which counts the tasks that are out.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dingsdk.config import to_easydict
from dingsdk.errors import DingError, PoisonTaskError, WorkerLostError
from dingsdk.worker import NaiveCommander, NaiveReplayBuffer
from dingsdk.worker.comm import LEFT, WorkerInfo
from dingsdk.worker.coordinator import TaskState, create_roles
from dingsdk.worker.coordinator.experience import Experience
from dingsdk.worker.coordinator.scheduler_state import LOSS_WINDOW_S, SchedulerState
from dingsdk.worker.coordinator.section import CoordinatorSection

LEASE_S = 15.0
MAX_ATTEMPTS = 3
TASK_TIMEOUT_S = {"collector": 30.0, "learner": 60.0}
ROLES = {"c0": "collector", "c1": "collector", "c2": "collector", "l0": "learner", "l1": "learner"}
CFG = to_easydict(
    {
        "exp_name": "does/not/exist",
        "seed": 0,
        "env": {
            "collector_env_num": 1,
            "evaluator_env_num": 1,
            "n_evaluator_episode": 1,
            "collector_episode_num": 1,
        },
        "env_manager": {"type": "vector"},
        "system": {"learner_num": 2, "collector_num": 3},
        "policy": {
            "type": "dqn",
            "learn": {"learner": {"type": "base"}},
            "collect": {"parallel_collector": {"type": "zergling"}},
            "other": {
                "replay_buffer": {"type": "naive", "replay_buffer_size": 8},
                "commander": {"type": "naive", "collector_task_space": 3},
            },
        },
    }
)
WORKERS = st.sampled_from(sorted(ROLES))
SECONDS = st.sampled_from([0.0, 1.0, 5.0, 14.0, 15.0, 31.0, 61.0])
PICK = st.integers(0, 99)


class RecordingCommander(NaiveCommander):
    """Records the tasks that it issued and how often each ended."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.issued: dict[str, str] = {}
        self.ended: Counter[str] = Counter()

    def get_collector_task(self) -> dict[str, Any] | None:
        return self._issue("collector", super().get_collector_task())

    def get_learner_task(self) -> dict[str, Any] | None:
        return self._issue("learner", super().get_learner_task())

    def finish_collector_task(self, task_id: str, finished_task: Mapping[str, Any]) -> None:
        self.ended[task_id] += 1
        super().finish_collector_task(task_id, finished_task)

    def finish_learner_task(self, task_id: str, finished_task: Mapping[str, Any]) -> str:
        self.ended[task_id] += 1
        return super().finish_learner_task(task_id, finished_task)

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self.ended[task["task_id"]] += 1
        super().notify_fail_collector_task(task)

    def notify_fail_learner_task(self, task: Mapping[str, Any]) -> None:
        self.ended[task["task_id"]] += 1
        super().notify_fail_learner_task(task)

    def out(self, role: str) -> set[str]:
        return {task for task, kind in self.issued.items() if kind == role} - self.ended.keys()

    def places(self, role: str) -> int:
        space = self._learner_space if role == "learner" else self._collector_space
        return space.cur

    def _issue(self, role: str, task: dict[str, Any] | None) -> dict[str, Any] | None:
        if task is not None:
            assert task["task_id"] not in self.issued
            self.issued[task["task_id"]] = role
        return task


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.commander = RecordingCommander(CFG)
        self.state = SchedulerState(
            create_roles(CFG),
            self.commander,
            CoordinatorSection(
                lease_s=LEASE_S,
                max_attempts=MAX_ATTEMPTS,
                collector_task_timeout=TASK_TIMEOUT_S["collector"],
                learner_task_timeout=TASK_TIMEOUT_S["learner"],
            ),
            lambda: self.now,
        )
        self.joined: dict[str, WorkerInfo] = {}
        self.lease_ends: dict[str, float] = {}
        self.incarnations: Counter[str] = Counter()
        self.assigned: list[TaskState] = []
        """Tasks whose driver has not reported the end yet."""
        self.attempts: Counter[str] = Counter()
        self.losses: dict[str, list[float]] = {}
        """Per task, the times at which workers were lost since its last progress."""
        self.marks: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()

    @initialize()
    def somebody_is_there(self) -> None:
        for worker_id in ("l0", "c0", "c1"):
            self.join(worker_id)
            self.dispatch(ROLES[worker_id])

    # Workers --------------------------------------------------------------------------------
    @rule(worker_id=WORKERS)
    def join(self, worker_id: str) -> None:
        """A worker joins; it replaces a worker with the same id."""
        if worker_id in self.joined:
            self._lose(worker_id)
        self.incarnations[worker_id] += 1
        info = WorkerInfo(
            worker_id,
            ROLES[worker_id],
            incarnation=self.incarnations[worker_id],
        )
        self.state.join(info)
        # A late report that the previous incarnation is lost must not affect this one.
        self.state.lose(dataclasses.replace(info, incarnation=info.incarnation - 1))
        self.joined[worker_id] = info
        self.lease_ends[worker_id] = self.now + LEASE_S

    @precondition(lambda self: self.assigned)
    @rule(pick=PICK, is_given_work=st.booleans())
    def come_back(self, pick: int, is_given_work: bool) -> None:
        """A busy worker is replaced before its driver has reported the loss."""
        worker = self._pick(pick).worker
        assert worker is not None
        self.join(worker.worker_id)
        if is_given_work:
            self.dispatch(worker.role)

    @rule(worker_id=WORKERS)
    def leave(self, worker_id: str) -> None:
        self._lose(worker_id)

    @rule(worker_id=WORKERS)
    def renew(self, worker_id: str) -> None:
        assert self.state.pool.renew(worker_id) == (worker_id in self.lease_ends)
        if worker_id in self.lease_ends:
            self.lease_ends[worker_id] = self.now + LEASE_S

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        late = [info.worker_id for info in self.state.pool.silent()]
        assert sorted(late) == sorted(w for w, end in self.lease_ends.items() if end <= self.now)
        for worker_id in late:
            self._lose(worker_id)
            assert not self.state.pool.renew(worker_id)

    # Tasks ----------------------------------------------------------------------------------
    @rule(role=st.sampled_from(["collector", "learner"]))
    def dispatch(self, role: str) -> None:
        self.state.produce(role)
        state = self.state.assign(role)
        if state is None:
            return
        worker = state.worker
        assert worker is not None
        assert worker == self.joined[worker.worker_id]  # the incarnation that is joined now
        assert worker.role == role
        assert not any(each.worker == worker for each in self.assigned), "it was busy"
        assert state.task_id not in {each.task_id for each in self.assigned}
        assert not self.commander.ended[state.task_id]
        if role == "learner" and state.buffer_id not in self.state.experiences:
            buffer = NaiveReplayBuffer(state.task["replay_buffer_cfg"])
            self.state.experiences[state.buffer_id] = Experience(buffer)
        self.attempts[state.task_id] += 1
        assert state.attempt == self.attempts[state.task_id]
        self.state.begin(state)
        self.assigned.append(state)

    @precondition(lambda self: self.assigned)
    @rule(pick=PICK, env_steps=st.integers(0, 100))
    def progress(self, pick: int, env_steps: int) -> None:
        state = self._pick(pick)
        self.state.note_progress(state, env_steps)
        if state.role == "collector":
            before = self.state.env_steps
            state.env_steps = max(state.env_steps, env_steps)
            assert self.state.env_steps >= before

    @precondition(lambda self: self.assigned)
    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        """A task's result arrives; its worker may have been lost since."""
        state = self._take(pick)
        before = self.state.env_steps
        if state.role == "collector":
            self.state.finish_collector(state, {"step_count": state.env_steps})
        else:
            experience = self.state.finish_learner(state, {"buffer_id": state.buffer_id})
            assert experience is not None
            experience.close()
        assert self.state.end(state, None) == (None, False)
        self.given_up[state.role] = 0
        assert self.state.env_steps == before

    @precondition(lambda self: self.assigned)
    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        """A task's code raises, which ends the run."""
        state = self._take(pick)
        error = DingError("its code raised")
        assert self.state.end(state, error) == (error, True)

    @precondition(lambda self: any(self._is_orphan(state) for state in self.assigned))
    @rule(pick=PICK, reason=st.sampled_from([LEFT, "silent"]))
    def report_loss(self, pick: int, reason: str) -> None:
        """The driver of a lost worker's task reports the loss, at once or much later.

        The task goes to another worker; it is given up after ``MAX_ATTEMPTS`` workers are lost.
        """
        orphans = [state for state in self.assigned if self._is_orphan(state)]
        state = orphans[pick % len(orphans)]
        self.assigned.remove(state)
        before = self.state.env_steps
        cause = WorkerLostError("lost", reason=reason)
        outcome, is_over = self.state.end(state, cause)
        self._count_loss(state, reason)
        is_needed = state.role == "learner" or state.buffer_id in self.state.experiences
        is_given_up = is_needed and len(self.losses[state.task_id]) == MAX_ATTEMPTS
        assert isinstance(outcome, PoisonTaskError) == is_given_up
        assert bool(self.commander.ended[state.task_id]) == (is_given_up or not is_needed)
        self.given_up[state.role] += is_given_up
        assert is_over == (
            is_given_up and (state.role == "learner" or self.given_up[state.role] >= MAX_ATTEMPTS)
        )
        assert self.state.env_steps == before

    def _count_loss(self, state: TaskState, reason: str) -> None:
        """Losses before the last progress, or before the time window, do not count."""
        name = state.task_id
        if reason == LEFT:
            self.attempts[name] -= 1
        else:
            is_further = state.progress > self.marks[name]
            has_progressed = is_further and self.now - state.began_at >= LEASE_S
            before = [] if has_progressed else self.losses.get(name, [])
            recent = [at for at in before if self.now - at < LOSS_WINDOW_S]
            self.losses[name] = [*recent, self.now]
        self.losses.setdefault(name, [])
        if state.role == "learner":
            self.marks[name] = max(self.marks[name], state.progress)

    # Invariants -----------------------------------------------------------------------------
    @invariant()
    def a_task_ends_at_most_once_and_gives_its_place_back(self) -> None:
        assert all(count == 1 for count in self.commander.ended.values())
        for role in ("collector", "learner"):
            assert self.commander.places(role) == len(self.commander.out(role))

    @invariant()
    def every_task_is_queued_running_or_over(self) -> None:
        assert {id(state) for state in self.state.running.values()} == {
            id(state) for state in self.assigned
        }
        running = set(self.state.running)
        assert not running & self.commander.ended.keys()
        for role in ("collector", "learner"):
            queued = [state.task_id for state in self.state._queues[role]]
            assert len(queued) == len(set(queued))
            assert set(queued) == self.commander.out(role) - running

    @invariant()
    def a_worker_is_idle_or_busy_once(self) -> None:
        busy = [state.worker for state in self.assigned if not self._is_orphan(state)]
        assert len(busy) == len({worker.worker_id for worker in busy if worker is not None})
        idle = set(self.state.pool._idle)
        assert idle == self.joined.keys() - {worker.worker_id for worker in busy if worker}

    @invariant()
    def workers_and_leases_are_those_who_joined(self) -> None:
        for role in ("collector", "learner"):
            expected = sum(info.role == role for info in self.joined.values())
            assert self.state.pool.counts()[role] == expected

    def teardown(self) -> None:
        """When all workers have left and all drivers have reported, only queued tasks are out."""
        for worker_id in list(self.joined):
            self._lose(worker_id)
        while self.assigned:
            self.report_loss(0, "silent")
        assert not self.state.running
        self.a_task_ends_at_most_once_and_gives_its_place_back()
        self.every_task_is_queued_running_or_over()
        for experience in self.state.experiences.values():
            experience.close()

    # ----------------------------------------------------------------------------------------
    def _lose(self, worker_id: str) -> None:
        info = self.joined.pop(worker_id, None)
        if info is not None:
            self.state.lose(info)
        self.lease_ends.pop(worker_id, None)

    def _is_orphan(self, state: TaskState) -> bool:
        worker = state.worker
        return worker is None or self.joined.get(worker.worker_id) != worker

    def _pick(self, pick: int) -> TaskState:
        return self.assigned[pick % len(self.assigned)]

    def _take(self, pick: int) -> TaskState:
        return self.assigned.pop(pick % len(self.assigned))


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
