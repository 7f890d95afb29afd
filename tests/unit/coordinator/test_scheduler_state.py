"""How tasks are queued, assigned, retried, given up and counted, with a simulated clock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from dingsdk.errors import DingError, PoisonTaskError, WorkerLostError
from dingsdk.worker.comm import LEFT, WorkerInfo
from dingsdk.worker.coordinator import Role, TaskState
from dingsdk.worker.coordinator.clock import RunClock
from dingsdk.worker.coordinator.dispatcher import QuietWatch
from dingsdk.worker.coordinator.journal import Progressed
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.recovery import OrphanTasks, apply, change_limit
from dingsdk.worker.coordinator.retries import LOSS_WINDOW_S
from dingsdk.worker.coordinator.roles import CollectorRole, LearnerRole
from dingsdk.worker.coordinator.run_end import RunEnd
from dingsdk.worker.coordinator.scheduler_state import TASK_TIMEOUT_S, SchedulerState
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.step_limits import StepLimits
from dingsdk.worker.sample_counts import SampleCounts

from .commander import Commander

LEASE_S = 10.0
RUN_CFG: dict[str, Any] = {"system": {"learner_num": 1, "collector_num": 2}}
BUFFER = {"type": "naive", "replay_buffer_size": 64, "seed": 1}


class Auditor(Role):
    """A custom role whose tasks may always run."""

    name = "auditor"
    failures: list[str]

    def create_worker(self, transport: Any, worker_id: str) -> Any:
        raise NotImplementedError

    def next_task(self, commander: Any) -> dict[str, Any] | None:
        return {"task_id": "audit"}

    def drive(self, control: Any, state: Any, task: Any) -> None:
        raise NotImplementedError

    def task_failed(self, commander: Any, task: Mapping[str, Any]) -> None:
        self.failures = [*getattr(self, "failures", []), task["task_id"]]


class Site:
    """The state under test, with a fake commander and three roles."""

    def __init__(self, **cfg: Any) -> None:
        self.now = 100.0
        self.commander = Commander()
        self.roles: dict[str, Role] = {
            "learner": LearnerRole({}, RUN_CFG),
            "collector": CollectorRole({}, RUN_CFG),
            "auditor": Auditor({}, RUN_CFG),
        }
        self.state = SchedulerState(
            self.roles,
            self.commander,
            CoordinatorSection(lease_s=LEASE_S, **cfg),
            RunClock(lambda: self.now, LEASE_S),
            lambda state: LivePayloads(64),
        )
        self.quiet = QuietWatch(self.state, 30.0, self.state.clock)
        cfg = {"system": {"max_env_steps": 1000}, "policy": {"on_policy": True}}
        self.end = RunEnd(self.state, threading.Condition(), cfg, 60.0, 1)

    def join(self, worker_id: str, role: str = "collector") -> WorkerInfo:
        info = WorkerInfo(worker_id, role)
        self.state.pool.add(info)
        return info

    def open_buffer(self, buffer_id: str = "b") -> LivePayloads:
        made = self.state.buffers[buffer_id] = LivePayloads(64)
        return made

    def assigned(self, role: str = "collector", **task: Any) -> TaskState:
        """Queue a task if given, assign the next one to a worker, and return it."""
        if task:
            self.commander.tasks[role].append({"task_id": "t", "buffer_id": "b", **task})
        self.state.produce(role)
        found = self.state.assign(role)
        assert found is not None
        self.state.begin(found)
        return found

    def granted(self, state: TaskState) -> int | None:
        """Return how many of the 1000 env steps of the run a task may take."""
        cfg = {"system": {"max_env_steps": 1000}, "policy": {}}
        return StepLimits(self.state, cfg).of(state)["step_limit"]

    def lose(self, state: TaskState, reason: str = "silent") -> tuple[DingError | None, bool]:
        """Lose the task's worker, and let a replacement join."""
        assert state.worker is not None
        self.state.pool.remove(state.worker)
        cause = WorkerLostError("lost", reason=reason)
        outcome = self.state.end(state, cause)
        self.join(state.worker.worker_id, state.worker.role)
        return outcome


@pytest.fixture
def site() -> Site:
    return Site()


def collecting(**cfg: Any) -> dict[str, Any]:
    return {"collector_cfg": {"eval_flag": False, **cfg}}


EVALUATING = collecting(eval_flag=True)
TRAINING = {"replay_buffer_cfg": BUFFER}


# Starting tasks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "limit_s"),
    [("collector", 30.0), ("learner", 600.0), ("auditor", TASK_TIMEOUT_S)],
)
def test_task_that_no_worker_takes_in_time_fails(site: Site, role: str, limit_s: float) -> None:
    info = site.join("w0", role)
    if role != "auditor":
        site.commander.tasks[role].append({"task_id": "t", "buffer_id": "b"})
    site.state.produce(role)
    site.state.pool.remove(info)
    site.now += limit_s
    assert site.state.assign(role) is None
    assert site.commander.failed == []
    site.now += 0.1
    assert site.state.assign(role) is None
    site.join("w0", role)
    assert site.state.assign(role) is None
    failed = getattr(site.roles["auditor"], "failures", [])
    assert site.commander.failed + [("auditor", each) for each in failed] == [
        (role, "audit" if role == "auditor" else "t")
    ]


def test_learner_task_that_was_given_up_does_not_limit_the_train_iter_of_the_run(
    site: Site,
) -> None:
    record = site.state
    site.join("l0", "learner")
    first = site.assigned("learner", **TRAINING)
    first.progress = 3
    assert record.train_iter == 3
    site.lose(first)
    assert record.train_iter == 3
    site.now += 601.0
    assert site.state.assign("learner") is None
    assert site.commander.failed == [("learner", "t")]
    assert record.train_iter == 3  # the progress of the run until now
    assert record.buffers == {}, "no learner will need its samples"
    site.join("l1", "learner")
    another = {**TRAINING, "task_id": "another", "buffer_id": "other"}
    site.assigned("learner", **another).progress = 9
    assert record.train_iter == 9


# Lost workers -------------------------------------------------------------------------------


def test_train_iter_of_the_run_is_the_lowest_of_its_learners(site: Site) -> None:
    record = site.state
    assert record.train_iter == 0
    for number, train_iter in enumerate((5, 3)):
        site.join(f"l{number}", "learner")
        task = {**TRAINING, "task_id": f"t{number}", "buffer_id": f"b{number}"}
        state = site.assigned("learner", **task)
        state.progress = train_iter
    assert record.train_iter == 3
    for state in list(site.state.running.values()):
        site.state.close_buffer(state.buffer_id)
        site.state.end(state, None)
    assert record.train_iter == 3, "the value of the learner that ended last"


def test_lost_collector_task_gets_a_new_seed_and_an_evaluation_keeps_its_seed(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    seeds = []
    for cfg in (collecting(seed=5), collecting(seed=5, eval_flag=True), collecting(seed=None)):
        state = site.assigned(**cfg)
        site.lose(state)
        again = site.assigned()
        seeds.append(again.task["collector_cfg"]["seed"])
        site.state.end(again, None)
    assert seeds[0] not in (5, None)
    assert seeds[1:] == [5, None]


def test_each_attempt_has_a_seed_of_its_own(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting(seed=5))
    seeds = {5}
    for _ in range(10):
        site.now += LOSS_WINDOW_S
        site.lose(state)
        state = site.assigned()
        seeds.add(state.task["collector_cfg"]["seed"])
    assert len(seeds) == 11


def test_losses_before_the_window_do_not_count(site: Site) -> None:
    site.join("l0", "learner")
    state = site.assigned("learner", **TRAINING)
    for _ in range(10):
        site.now += LOSS_WINDOW_S / 2
        assert site.lose(state) == (None, False)
        state = site.assigned("learner")
    error, is_fatal = site.lose(state)
    assert isinstance(error, PoisonTaskError)
    assert is_fatal


def test_losses_before_progress_do_not_count(site: Site) -> None:
    site.join("l0", "learner")
    state = site.assigned("learner", **TRAINING)
    for iteration in range(100, 1100, 100):
        site.now += LEASE_S
        state.progress = iteration
        assert site.lose(state) == (None, False)
        state = site.assigned("learner")


@pytest.mark.parametrize(
    ("seconds", "iterations"),
    [(LEASE_S, (100, 100, 100)), (LEASE_S, (100, 90, 50)), (LEASE_S - 0.1, (100, 200, 300))],
)
def test_loss_counts_if_the_attempt_was_short_or_made_no_new_progress(
    site: Site, seconds: float, iterations: tuple[int, ...]
) -> None:
    site.join("l0", "learner")
    state = site.assigned("learner", **TRAINING)
    outcomes = []
    for iteration in iterations:
        site.now += seconds
        state.progress = iteration
        outcomes.append(site.lose(state)[1])
        if not outcomes[-1]:
            state = site.assigned("learner")
    # Progress of the first attempt does not help later attempts.
    assert outcomes == [False, False, True]


def test_worker_that_leaves_does_not_count_as_a_loss(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    for _ in range(20):
        assert site.lose(state, LEFT) == (None, False)
        state = site.assigned()
        assert state.attempt == 1


def test_lost_worker_gets_no_other_task_before_its_loss_is_reported(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    assert site.state.end(state, WorkerLostError("lost")) == (None, False)
    assert site.state.assign("collector") is None


def give_up(site: Site, task_id: str) -> tuple[DingError | None, bool]:
    """Lose three workers during one evaluation."""
    outcome: tuple[DingError | None, bool] = (None, False)
    state = site.assigned(**{**EVALUATING, "task_id": task_id})
    for attempt in range(3):
        outcome = site.lose(state)
        if attempt < 2:
            state = site.assigned()
    return outcome


def test_evaluations_given_up_in_a_row_end_the_run(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    outcomes = [give_up(site, str(n)) for n in range(3)]
    assert [type(error) for error, _ in outcomes] == [PoisonTaskError] * 3
    assert [is_fatal for _, is_fatal in outcomes] == [False, False, True]
    assert "evaluator task 2 is given up" in str(outcomes[2][0])


def test_finished_evaluation_resets_the_count(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    for round_ in range(3):
        assert [give_up(site, f"{round_}{n}")[1] for n in range(2)] == [False, False]
        done = site.assigned(**{**EVALUATING, "task_id": f"{round_}done"})
        assert site.state.end(done, None) == (None, False)


def test_lost_collector_is_not_retried_after_its_learner_is_done(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    del site.state.buffers["b"]
    assert site.lose(state) == (None, False)
    assert site.commander.failed == [("collector", "t")]
    site.open_buffer()
    assert site.state.assign("collector") is None


def test_iterations_of_a_learner_whose_code_failed_are_kept(site: Site) -> None:
    site.join("l0", "learner")
    site.join("c0")
    learner, collector = site.assigned("learner", **TRAINING), site.assigned(**collecting())
    learner.progress, collector.progress = 7, 100
    failed = DingError("on purpose")
    assert [site.state.end(each, failed) for each in (learner, collector)] == [(failed, True)] * 2
    assert site.state.train_iter == 7


def test_last_evaluation_waits_until_all_tasks_end_and_a_worker_is_idle(site: Site) -> None:
    site.join("l0", "learner")
    learner = site.assigned("learner", **TRAINING)
    site.commander.last = {**EVALUATING, "task_id": "last"}
    site.end.finish_evaluations(0.0)
    assert site.end.assign_evaluation() is None
    site.state.end(learner, None)
    assert site.end.assign_evaluation() is None
    site.join("c0")
    assert site.end.owed_evaluations == 1
    state = site.end.assign_evaluation()
    assert site.end.owed_evaluations == 0
    assert state is not None
    assert (state.task_id, state.attempt) == ("last", 1)
    assert not site.end.finish_evaluations(0.0)
    site.state.end(state, None)
    assert site.end.finish_evaluations(0.0)


def test_queued_task_is_replaced_by_the_last_evaluation(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    site.commander.tasks["collector"].append({"task_id": "t", "buffer_id": "b", **collecting()})
    site.state.produce("collector")
    told: list[list[tuple[str, str]]] = []

    def last() -> dict[str, Any]:
        told.append(list(site.commander.failed))
        return {**EVALUATING, "task_id": "last"}

    site.commander.get_last_eval_task = last  # type: ignore[method-assign]
    state = site.end.assign_evaluation()
    assert state is not None
    assert state.task_id == "last"
    assert told == [[("collector", "t")]]  # before the commander was asked
    assert not site.state.queued


def test_only_evaluations_are_assigned_after_collecting_has_ended(site: Site) -> None:
    site.open_buffer()
    site.commander.get_eval_task = lambda: {**EVALUATING, "task_id": "e", "buffer_id": "b"}  # type: ignore[attr-defined]
    site.state.produce("collector", ends_collecting=True)
    assert not site.state.queued  # no worker is idle
    site.join("c0")
    site.commander.tasks["collector"].append({"task_id": "t", "buffer_id": "b", **collecting()})
    site.state.produce("collector")
    for _ in range(2):
        site.state.produce("collector", ends_collecting=True)
    assert site.commander.failed == [("collector", "t")]
    state = site.state.assign("collector")
    assert state is not None
    assert (state.task_id, state.is_evaluation) == ("e", True)


@pytest.mark.parametrize("idle", [(True, True), (False, True), (True, False)])
def test_run_is_trained_out_when_all_learners_wait_for_data(
    site: Site, idle: tuple[bool, bool]
) -> None:
    for number, is_idle in enumerate(idle):
        site.join(f"l{number}", "learner")
        task = {**TRAINING, "task_id": f"t{number}", "buffer_id": f"b{number}"}
        site.assigned("learner", **task)
        site.state.buffers[f"b{number}"].is_idle = is_idle
    site.end.last_env_step = 0
    site.end.look_at_env_steps()
    assert site.end.train_out(0.0) is all(idle)


# Facts --------------------------------------------------------------------------------------


def test_facts_of_tasks_restore_the_state(site: Site) -> None:
    facts: list[Any] = []
    site.state.note = facts.append
    site.open_buffer()
    site.join("c0")
    done = site.assigned(**collecting(), task_id="done")
    site.state.finish_collector(done, {"step_count": 8, "real_episode_count": 2})
    site.state.end(done, None)
    lost = site.assigned(**collecting(), task_id="lost")
    site.state.progress(lost, report(3))
    site.lose(lost)
    failed = site.join("c1")
    site.commander.tasks["collector"].append({"task_id": "failed", "buffer_id": "b"})
    again = site.state.assign("collector")
    assert again is not None
    site.state.produce("collector")
    site.state.pool.remove(failed)
    site.now += 31.0
    site.state.assign("collector")
    assert site.commander.failed == [("collector", "failed")]

    other = Site()
    for fact in facts:
        apply(other.state, fact)

    (orphan,) = OrphanTasks(other.state).tasks
    assert (orphan.task_id, orphan.attempt, orphan.lost_env_steps) == ("lost", 2, 3)
    assert orphan.payload_prefix == again.payload_prefix
    assert other.state.queued == []
    assert (other.state.env_steps, other.state.totals.episodes) == (11, 2)
    assert other.commander.loaded[-1] == {"finished": 1}


# Counting -----------------------------------------------------------------------------------


def test_rows_that_wait_at_the_end_of_their_task_stay_unacknowledged(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    state.waiting = {"a": 3, "b": 2}
    for _ in range(2):
        assert site.state.samples() == SampleCounts(collected=5)
        site.state.end(state, None)
        state.waiting = {}


def report(steps: int, *, done: bool = False) -> dict[str, Any]:
    return {"cur_step": steps, "collector_done": done}


def test_env_steps_of_lost_attempts_are_counted_and_reported_to_the_commander(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    assert not site.state.progress(state, report(40))
    assert not site.state.progress(state, report(30))  # late
    assert site.state.env_steps == 40
    site.lose(state)
    assert site.state.env_steps == 40
    again = site.assigned()
    assert site.state.progress(again, report(5, done=True))
    assert site.commander.calls[-1] == ("collected", 45)
    assert not site.state.finish_collector(again, {"step_count": 8})
    assert site.state.env_steps == 48
    site.state.end(again, None)
    assert site.state.env_steps == 48
    assert site.commander.finished[-1]["step_count"] == 48


def test_collectors_together_are_granted_the_env_steps_of_the_run(site: Site) -> None:
    site.open_buffer()
    for name in ("c0", "c1", "c2"):
        site.join(name)
    first, second = (site.assigned(**collecting(), task_id=name) for name in "ab")
    site.assigned(**EVALUATING, task_id="e")  # its steps do not count
    assert site.granted(first) == 500
    assert site.granted(second) == 250
    site.state.progress(first, report(300))
    assert site.granted(first) == 300 + 225
    while site.state.env_steps < 1000:
        for state in (first, second):
            site.state.progress(state, report(site.granted(state) or 0))
    assert site.state.env_steps == 1000
    assert site.granted(first) == first.env_steps


def test_env_steps_are_granted_after_all_collectors_have_rejoined(site: Site) -> None:
    facts: list[Any] = []
    site.state.note = facts.append
    site.open_buffer()
    for name in "ab":
        site.join(name)
        site.assigned(**collecting(), task_id=name)
    other = Site()
    other.open_buffer()
    for fact in facts:
        apply(other.state, fact)
    first, second = OrphanTasks(other.state).tasks
    first.worker, first.step_limit = other.join("a"), 300
    assert other.granted(first) == 300, "the limit of the other one is not known"
    second.worker, second.step_limit = other.join("b"), 600
    other.state.progress(first, report(300))
    assert other.granted(first) == 300 + 64


def test_env_steps_of_evaluations_do_not_count(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**EVALUATING)
    site.state.progress(state, report(40))
    assert site.commander.calls[-1] == ("collected", 40)
    site.commander.goal_is_reached = True
    assert site.state.finish_collector(state, {"step_count": 90})
    site.state.end(state, None)
    assert site.state.env_steps == 0
    assert site.commander.finished[-1]["step_count"] == 90


def test_payloads_are_live_if_buffered_waiting_or_of_a_running_task(site: Site) -> None:
    payloads = site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    payloads.push({"data_id": "buffered", "rows": 2, "policy_iter": 0}, 0)
    state.waiting = {"waiting": 2}
    is_live = site.state.find_live()
    assert is_live("buffered")
    assert is_live("waiting")
    assert is_live(f"{state.payload_prefix}-anything")
    assert not is_live("nobodys")
    site.state.end(state, None)
    is_live = site.state.find_live()
    assert is_live("buffered")
    assert not is_live(f"{state.payload_prefix}-anything")


def test_state_of_a_task_needs_only_its_id() -> None:
    state = TaskState("t")
    assert (state.task_id, state.kind, state.buffer_id, state.is_evaluation) == ("t", "", "", False)
    assert state.start_time > 0
    assert (state.attempt, state.progress, state.mark) == (0, 0, 0)
    assert (state.env_steps, state.lost_env_steps) == (0, 0)
    assert state.player is None
    assert TaskState("t", "learner", {"player": "player_1"}).player == "player_1"


def test_run_without_progress_says_once_what_it_waits_for() -> None:
    site = Site()
    site.join("l0", "learner")
    assert site.quiet.look() == ""
    site.now += 29.9
    assert site.quiet.look() == ""
    site.now += 0.1
    said = site.quiet.look()
    assert "commander 'Commander' has issued no task for an idle learner" in said
    assert "no collector has joined" in said
    assert "the replay buffer holds 0 rows" in said
    for _ in range(3):
        site.now += 100
        assert site.quiet.look() == ""


def test_quiet_run_does_not_blame_the_commander_for_busy_workers_and_waiting_tasks() -> None:
    site = Site()
    site.join("c0")
    site.join("l0", "learner")
    site.open_buffer("other")
    site.assigned(buffer_id="other", **collecting())
    site.join("c1")
    site.commander.tasks["collector"].append({"task_id": "u", "buffer_id": "b"})
    site.state.produce("collector")  # the task waits for its buffer
    site.assigned("learner", task_id="l", **TRAINING)
    site.quiet.look()
    site.now += 30
    said = site.quiet.look()
    assert "issued no task" not in said
    assert "collector c0 has reported no progress" in said


def test_progress_ends_a_quiet_time_and_the_next_one_is_reported_too() -> None:
    site = Site()
    site.join("c0")
    site.open_buffer()
    state = site.assigned(collector_cfg={})
    assert site.quiet.look() == ""
    site.now += 20
    site.state.progress(state, {"cur_step": 5})
    assert site.quiet.look() == ""
    site.now += 20
    assert site.quiet.look() == ""
    site.now += 10
    assert "collector c0 has reported no progress" in site.quiet.look()
    site.state.progress(state, {"cur_step": 6})
    assert site.quiet.look() == ""
    state.waits_for = "room for 8 rows in the replay buffer"
    site.now += 30
    assert "collector c0 waits for room for 8 rows in the replay buffer" in site.quiet.look()


def test_episodes_of_ended_collecting_tasks_are_counted(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    for task, episodes in ((collecting(), 3), (EVALUATING, 5), (collecting(), None)):
        state = site.assigned(**task)
        count = {} if episodes is None else {"real_episode_count": episodes}
        site.state.finish_collector(state, {"step_count": 1, **count})
        site.state.end(state, None)
    assert site.state.totals.episodes == 3


def test_changed_limit_applies_to_running_and_queued_learner_tasks(site: Site) -> None:
    site.open_buffer()
    site.join("l0", "learner")
    learner_cfg = {"train_iterations": 10, "hook": {}}
    site.commander.tasks["learner"] += [
        {"task_id": name, "buffer_id": "b", "learner_cfg": learner_cfg} for name in ("t", "u")
    ]
    running = site.assigned("learner")
    site.join("l1", "learner")
    site.join("c0")
    collector = site.assigned(task_id="c", **collecting(), learner_cfg=learner_cfg)
    site.state.produce("learner")
    change_limit(site.state, {"train_iterations": 50, "hook": {"x": 1}})
    queued = site.state.assign("learner")
    assert queued is not None
    for state in (running, queued):
        assert state.task["learner_cfg"] == {"train_iterations": 50, "hook": {}}
    assert collector.task["learner_cfg"] == learner_cfg == {"train_iterations": 10, "hook": {}}


def test_worker_that_rejoins_with_its_task_is_busy(site: Site) -> None:
    site.open_buffer()
    site.join("c0")
    state = site.assigned(**collecting())
    state.worker = None  # as after a restart from the journal
    orphans = OrphanTasks(site.state)
    assert orphans.tasks == [state]
    kept = {"task_id": "t", "payload_prefix": state.payload_prefix}
    info = WorkerInfo("c1", "collector", {"task": kept})
    site.state.pool.add(info)
    assert site.state.idle("collector") == site.state.pool.of_role("collector")[0]
    assert orphans.adopt(WorkerInfo("l0", "learner", {"task": kept})) is None, "another role"
    assert orphans.adopt(info) is state
    assert (state.worker, orphans.tasks) == (info, [])
    assert orphans.adopt(info) is None, "it has a worker"


def test_fact_of_an_unknown_task_is_refused() -> None:
    with pytest.raises(LookupError, match="t7"):
        apply(Site().state, Progressed("t7", 3, 1.0))
