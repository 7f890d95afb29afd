"""A coordinator restores the state of an earlier one from its journal."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dingsdk.worker.coordinator.experience import Experience

from dingsdk.data import SampleBatch
from dingsdk.data.container import encode_frame
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointVersionError,
    DingError,
    RunDirLockedError,
)
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.runtime.files import Folder
from dingsdk.worker import Coordinator
from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.coordinator import TaskState
from dingsdk.worker.coordinator.coordinator import MANY_LOST
from dingsdk.worker.coordinator.journal import Journal
from tools.os_calls import failing_calls

BUFFER = "policy.other.replay_buffer."
KINDS: dict[str, tuple[str, ...]] = {
    "naive": ("cartpole-dqn",),
    "prioritized": (
        "cartpole-dqn",
        f"{BUFFER}type=advanced",
        "policy.priority=true",
        f"{BUFFER}max_use=3",
        f"{BUFFER}max_staleness=40",
    ),
    "on-policy": ("cartpole-ppo", "policy.collect.n_sample=32"),
}
ROWS = 8
DEMAND = {"batch_size": 16, "batches": 3, "cur_learner_iter": 0}


class Life:
    """One coordinator with a journal, not started; the test acts as its workers."""

    def __init__(
        self,
        folder: Path,
        transport: Any,
        kind: str,
        snapshot_facts: int = 40,
        more: Sequence[str] = (),
        **options: Any,
    ) -> None:
        example, *sets = (*KINDS[kind], *more)
        sets += ["policy.learn.batch_size=16", f"{BUFFER}replay_buffer_size=200"]
        if kind != "on-policy":
            sets.append("policy.collect.n_sample=32")
        cfg = compile_run(example, "parallel", "in_memory", sets, 0)
        cfg = worker_config(cfg, folder)
        self.now = 100.0
        journal = Journal(Folder(folder / "journal"), snapshot_facts=snapshot_facts)
        self.coordinator = Coordinator(
            cfg, transport, journal=journal, clock=lambda: self.now, **options
        )
        self.scheduler = self.coordinator._state
        assert self.coordinator._keeper is not None
        self.keeper = self.coordinator._keeper
        self.coordinator._recover(self.keeper)

    def join(self, worker_id: str, role: str) -> None:
        self.scheduler.join(WorkerInfo(worker_id, role, incarnation=1))

    def give(self, role: str) -> TaskState:
        """Assign the next task of the commander to a worker."""
        self.scheduler.produce(role)
        state = self.scheduler.assign(role)
        assert state is not None
        if role == "learner":
            self.coordinator.open_experience(state)
        return state

    def collect(self) -> TaskState:
        """End the first task, which is an evaluation, and return a collecting task."""
        evaluation = self.give("collector")
        finished = {"train_iter": 0, "reward_mean": 9.0, "step_count": 40, "collector_done": True}
        self.coordinator.deal_with_collector_finish_task(evaluation, finished)
        self.scheduler.end(evaluation, None)
        return self.give("collector")

    def begin(self, payloads: int) -> tuple[TaskState, TaskState]:
        """Start a learner and a collector, push payloads, and return both tasks."""
        self.join("l0", "learner")
        self.join("c0", "collector")
        learner, collector = self.give("learner"), self.collect()
        for number in range(payloads):
            self.push(collector, f"p{number}", number, 0)
        return learner, collector

    def push(self, state: TaskState, name: str, seed: int, iteration: int) -> bool:
        rng = np.random.default_rng(seed)
        self.coordinator.data_store.put(name, SampleBatch({"x": np.zeros(ROWS)}))
        meta: dict[str, Any] = {"data_id": name, "rows": ROWS, "policy_iter": iteration}
        experience = self.coordinator.experience_of(state)
        assert experience is not None
        columns = {each: rng.random(ROWS) for each in experience.columns}
        if "replay_unique_id" in experience.buffer.state_dict().get("metadata", {}):
            columns["priority"] = rng.random(ROWS)
        return self.coordinator.deal_with_collector_send_data(state, {**meta, "columns": columns})

    def train(self, state: TaskState, seed: int, iteration: int, lost: bool) -> int:
        """Lease batches and report some as trained; return the number of leased rows."""
        rng = np.random.default_rng(seed)
        demand = {"batch_size": 16, "batches": 3, "cur_learner_iter": iteration}
        leased = self.coordinator.deal_with_learner_get_data(state, demand)
        if leased is None:
            return 0
        batches = leased["batches"]
        left = int(rng.integers(len(batches)))  # batches that are not trained yet
        step = iteration + len(batches) - left
        info: dict[str, Any] = {"learner_step": step, "priority_info": {}}
        if "replay_unique_id" in batches[0]:
            keys = ("replay_unique_id", "replay_buffer_idx")
            known = {key: np.concatenate([each[key] for each in batches]) for key in keys}
            size = len(known[keys[0]])
            info["priority_info"] = {**known, "priority": rng.random(size)}
        first = int(batches[0]["payload"][0])
        info["lost_payloads"] = [[first, "missing"]] if lost else []
        info |= {"batches_left": left, "learner_done": False}
        self.coordinator.deal_with_learner_send_info(state, info)
        return sum(len(each["payload"]) for each in batches)

    def look(self) -> dict[str, Any]:
        """Return the state without values that depend on clocks."""
        state = self.coordinator.state_dict()
        commander = state["scheduler"]["commander"]
        assert state.pop("elapsed_s") >= 0
        if commander["schedule"]["last"] is not None:
            commander["schedule"] = commander["schedule"]["last"][:2]
        lost = commander["learner_info"].get("lost_payloads", [])
        commander["learner_info"]["lost_payloads"] = [list(each) for each in lost]
        return state


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Return whether two states are equal, byte for byte."""
    frames = [encode_frame("state", each)[0] for each in (left, right)]
    return b"".join(map(bytes, frames[0])) == b"".join(map(bytes, frames[1]))


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Any]:
    cfg = {"type": "in_memory", "concurrency": "threads"}
    made = default_manager().create("transports", cfg, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_state_after_a_restart_is_the_one_before_it(
    tmp_path: Path, transport: Any, kind: str
) -> None:
    rng = np.random.default_rng(5)
    life = Life(tmp_path, transport, kind)
    life.join("l0", "learner")
    life.join("c0", "collector")
    learner, collector = life.give("learner"), life.collect()
    iteration = pushed = steps = 0
    acknowledged: Counter[str] = Counter()
    for step in range(150):
        action = rng.integers(8)
        if action < 4:
            name = f"p{pushed if action else max(0, pushed - 3)}"  # sometimes a repeated one
            pushed += 1
            acknowledged[name] += life.push(collector, name, step, iteration)
        elif action < 6:
            iteration += bool(life.train(learner, step, iteration, lost=step % 17 == 0))
        elif action == 6:
            steps += 5
            life.coordinator.deal_with_collector_progress(collector, {"cur_step": steps})
        else:
            life.coordinator._keep_journal()
        if step % 30 == 29:
            life.coordinator.validate_state()
            after = Life(tmp_path, transport, kind)
            assert same(life.look(), after.look())
            after.coordinator.validate_state()
            life = after
            learner, collector = (
                life.scheduler.running[each.task_id] for each in (learner, collector)
            )
    assert life.coordinator.status().env_steps == steps > 0
    assert life.coordinator.status().train_iter > 0
    # Counted without the ledger: each accepted name counts once.
    assert life.coordinator.status().samples.acknowledged == ROWS * len(+acknowledged)


@pytest.mark.parametrize("kind", KINDS)
def test_restarted_coordinator_draws_the_same_batches(
    tmp_path: Path, transport: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path, transport, kind)
    learner, collector = life.begin(payloads=12)
    life.train(learner, 1, 0, lost=False)
    for number in range(12, 20):
        life.push(collector, f"p{number}", number, 0)
    after = Life(tmp_path, transport, kind)
    experience = after.coordinator.experience_of(collector)
    assert experience is not None
    if experience.admission is not None:
        experience.admission.forget(collector.task_id)  # it is not waited for
    drawn = [
        each.coordinator.experience_of(learner).lease(learner, 16, 3, 3)["batches"]  # type: ignore[union-attr, index]
        for each in (life, after)
    ]
    assert same({"drawn": drawn[0]}, {"drawn": drawn[1]})
    assert "the replay buffer drew" not in caplog.text


def test_different_draws_after_a_restart_are_logged(
    tmp_path: Path,
    transport: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    life = Life(tmp_path, transport, "naive")
    learner, _ = life.begin(payloads=12)
    assert life.train(learner, 1, 0, lost=False) == 48
    monkeypatch.setattr(Experience, "lease", lambda *args: None)
    Life(tmp_path, transport, "naive")
    assert "the replay buffer drew 0 batches instead of 3" in caplog.text


def test_tasks_of_workers_that_do_not_come_back_are_given_to_others(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    learner, collector = life.give("learner"), life.collect()
    life.push(collector, "p0", 1, 0)
    life.coordinator.deal_with_collector_progress(collector, {"cur_step": 7})
    after = Life(tmp_path, transport, "naive")
    assert {each.task_id for each in after.scheduler.orphans} == {
        learner.task_id,
        collector.task_id,
    }
    after.coordinator._expire_orphans()
    assert after.scheduler.running == {}
    after.join("l1", "learner")
    after.join("c1", "collector")
    again = after.give("learner")
    assert (again.task_id, again.attempt, again.task["resume"]) == (learner.task_id, 1, True)
    collecting = after.give("collector")
    assert collecting.task_id == collector.task_id
    assert collecting.payload_prefix != collector.payload_prefix
    assert collecting.lost_env_steps == 7
    assert after.coordinator.status().env_steps == 7
    assert after.coordinator.status().samples.live == ROWS
    # A third coordinator restores the same state.
    assert same(after.look(), Life(tmp_path, transport, "naive").look())


@pytest.mark.parametrize("rejoin_s", [0.0, 5.0])
def test_policy_of_a_learner_that_does_not_come_back_is_discarded(
    tmp_path: Path, transport: Any, rejoin_s: float
) -> None:
    first = Life(tmp_path, transport, "naive")
    learner, _ = first.begin(1)
    policy_id = str(learner.task["policy_id"])
    policies = transport.policy_store()
    policies.publish(policy_id, {"w": np.zeros(1)}, 30)

    Life(tmp_path, transport, "naive", rejoin_s=rejoin_s)
    policies.publish(policy_id, {"w": np.ones(1)}, 20)  # of its checkpoint
    newest = policies.newest(policy_id)
    assert newest is not None
    assert newest[0] == (30 if rejoin_s else 20)


def test_task_of_a_worker_that_comes_back_without_it_is_given_to_others_at_once(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    learner, collector = life.begin(payloads=1)
    after = Life(tmp_path, transport, "naive", rejoin_s=30.0)
    over = {"task_id": collector.task_id, "payload_prefix": collector.payload_prefix}
    for prefix, waiting in (("other", [learner, collector]), (collector.payload_prefix, [learner])):
        task = {**over, "payload_prefix": prefix, "is_over": True}
        after.coordinator._on_join(WorkerInfo("c0", "collector", {"task": task}, incarnation=2))
        found = {each.task_id for each in after.scheduler.orphans}
        assert found == {each.task_id for each in waiting}
    assert after.give("collector").task_id == collector.task_id
    assert after.coordinator.status().samples.live == ROWS


def test_collector_of_an_earlier_coordinator_is_waited_for_until_the_rejoin_timeout(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "on-policy")
    learner, collector = life.begin(payloads=4)
    assert life.coordinator.deal_with_learner_get_data(learner, DEMAND) is not None
    after = Life(tmp_path, transport, "on-policy", rejoin_s=30.0)
    experience = after.coordinator.experience_of(learner)
    assert experience is not None
    assert experience.admission is not None
    for seconds, is_waited_for in ((0.0, True), (29.5, True), (0.5, False)):
        after.now += seconds
        after.coordinator._expire_orphans()
        assert experience.admission.has_outstanding(collector.task_id) is is_waited_for
        assert (after.scheduler.orphans != []) is is_waited_for
    after.coordinator.validate_state()  # only running tasks have leases


def test_end_of_leases_is_restored(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    learner, _ = life.begin(payloads=12)
    assert life.coordinator.deal_with_learner_get_data(learner, DEMAND) is not None
    life.coordinator.end_batch_leases(learner)
    after = Life(tmp_path, transport, "naive")
    assert same(life.look(), after.look())
    after.coordinator.validate_state()
    assert after.look()["experiences"][learner.buffer_id]["leases"] == {}


def test_paused_coordinator_notices_that_another_one_took_its_journal(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    Life(tmp_path, transport, "naive")
    life.coordinator._check_owner()  # it checked a moment ago
    life.now += life.coordinator.cfg.lease_s
    with pytest.raises(RunDirLockedError):
        life.coordinator._check_owner()


def test_env_steps_of_a_finished_task_are_restored_before_its_end(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    _, collector = life.begin(payloads=1)
    life.now += 3.0
    life.coordinator.deal_with_collecting()
    life.now += 4.0
    life.coordinator.deal_with_collector_finish_task(collector, {"step_count": 24})
    after = Life(tmp_path, transport, "naive")
    assert after.coordinator.status().env_steps == 24
    assert after.coordinator.elapsed_s == 4.0


def test_ended_and_queued_tasks_are_restored(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    life.give("learner")
    life.collect()
    life.join("c1", "collector")
    life.coordinator.note_evaluation({"mean": 9.0})
    life.scheduler.produce("collector")  # it waits for a worker
    after = Life(tmp_path, transport, "naive")
    assert same(life.look(), after.look())
    assert after.coordinator.evaluations == [{"mean": 9.0}]
    after.join("c1", "collector")
    after.coordinator._expire_orphans()
    assert not after.give("collector").is_evaluation


def test_finished_learner_task_is_not_repeated_if_its_coordinator_dies_at_once(
    tmp_path: Path, transport: Any
) -> None:
    two = ["system.coordinator.max_learner_tasks=2"]
    life = Life(tmp_path, transport, "naive", more=two)
    life.join("l0", "learner")
    first = life.give("learner")
    finished = {"task_id": first.task_id, "buffer_id": first.buffer_id}
    life.coordinator.deal_with_learner_finish_task(first, finished, has_trained_out=True)

    after = Life(tmp_path, transport, "naive", more=two)
    assert not after.scheduler.orphans
    assert not after.scheduler.experiences
    assert after.look()["iterations"] == {}
    after.join("l0", "learner")
    second = after.give("learner")
    assert second.task_id != first.task_id
    assert not after.coordinator.system_shutdown_flag
    finished = {"task_id": second.task_id, "buffer_id": second.buffer_id}
    after.coordinator.deal_with_learner_finish_task(second, finished, has_trained_out=True)
    assert after.coordinator.system_shutdown_flag


def test_restart_of_the_coordinator_does_not_count_as_a_loss_of_the_task(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    learner = life.give("learner")
    for _ in range(10):
        life = Life(tmp_path, transport, "naive")
        life.coordinator._expire_orphans()
        life.join("l0", "learner")
        again = life.give("learner")
        assert (again.task_id, again.attempt, again.losses) == (learner.task_id, 1, ())


def test_tasks_at_the_end_of_a_run_are_kept_for_a_resume(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    learner, collector = life.give("learner"), life.collect()
    life.push(collector, "p0", 1, 0)
    life.coordinator.system_shutdown_flag = True
    finished = {"step_count": 12, "task_id": collector.task_id, "buffer_id": collector.buffer_id}
    life.coordinator.deal_with_collector_finish_task(
        collector, {**finished, "train_iter": 0, "reward_mean": 0.0}
    )
    life.scheduler.end(collector, None)
    life.coordinator.deal_with_learner_finish_task(
        learner, {"buffer_id": learner.buffer_id}, has_trained_out=True
    )
    life.scheduler.end(learner, None)
    after = Life(tmp_path, transport, "naive")
    assert {each.task_id for each in after.scheduler.orphans} == {
        learner.task_id,
        collector.task_id,
    }
    assert after.coordinator.status().samples.live == ROWS


def test_task_whose_error_ended_the_run_is_resumed(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    learner = life.give("learner")
    error, is_fatal = life.scheduler.end(learner, DingError("no memory left"))
    assert (str(error), is_fatal) == ("no memory left", True)
    after = Life(tmp_path, transport, "naive")
    (left,) = after.scheduler.orphans
    assert left.task_id == learner.task_id
    after.scheduler.expire_orphan(left)
    after.join("l0", "learner")
    assert after.give("learner").task["resume"]


def test_payloads_that_are_missing_at_a_restart_are_given_up(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    life.give("learner")
    collector = life.collect()
    names = [f"p{number}" for number in range(MANY_LOST)]
    for number, name in enumerate(names):
        life.push(collector, name, number, 0)
    transport.data_store().delete(names[:-1])
    after = Life(tmp_path, transport, "naive")
    experience = after.coordinator.experience_of(collector)
    assert experience is not None
    assert experience.readable() == names[-1:]
    transport.data_store().delete(names)
    after = Life(tmp_path, transport, "naive")
    samples = after.coordinator.status().samples
    assert samples.live == 0
    assert samples.evicted == {"missing": ROWS * MANY_LOST}


def test_payloads_that_were_given_up_are_not_leased_after_a_restart(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive", snapshot_facts=1000)
    learner, _ = life.begin(payloads=5)
    experience = life.coordinator.experience_of(learner)
    assert experience is not None
    life.coordinator.data_store.delete(["p1", "p3"])
    lost = [[number, "missing"] for number in range(MANY_LOST)]
    life.coordinator._give_up_missing(experience, learner, {"lost_payloads": lost})
    assert sorted(experience.readable()) == ["p0", "p2", "p4"]
    assert life.train(learner, 1, 0, lost=False) > 0  # with the remaining payloads

    after = Life(tmp_path, transport, "naive", snapshot_facts=1000)
    again = after.coordinator.experience_of(after.scheduler.running[learner.task_id])
    assert again is not None
    assert sorted(again.readable()) == ["p0", "p2", "p4"]
    assert same(life.look(), after.look())


def test_iteration_in_the_demand_of_a_learner_is_restored(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive", snapshot_facts=1000)
    learner, _ = life.begin(payloads=5)
    assert life.coordinator.deal_with_learner_get_data(learner, {**DEMAND, "cur_learner_iter": 7})
    found = life.look()
    assert found["iterations"][learner.task_id] == 7
    assert same(found, Life(tmp_path, transport, "naive", snapshot_facts=1000).look())


def test_dispatcher_writes_a_state_that_is_due(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive", snapshot_facts=5)
    life.begin(payloads=6)
    assert life.keeper.is_state_due
    life.coordinator._has_news = True
    life.coordinator._dispatch_once()
    assert not life.keeper.is_state_due
    assert len(list((tmp_path / "journal").glob("*.state"))) == 1


def test_nothing_is_acknowledged_or_leased_while_the_journal_disk_is_full(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    learner, collector = life.begin(payloads=4)
    with failing_calls(("writev", "write"), 1, errno.ENOSPC, persistent=True):
        assert not life.push(collector, "p4", 4, 0)
        assert "ENOSPC" in life.coordinator.held_up_by
        assert life.train(learner, 1, 0, lost=False)  # true already: the journal is behind
        assert life.keeper.is_behind
        assert not life.train(learner, 2, 3, lost=False)
        life.coordinator._keep_journal()
        assert not life.push(collector, "p4", 4, 0)
    assert life.keeper.is_behind
    life.coordinator._keep_journal()  # too soon after the last try
    assert life.keeper.is_behind
    life.now += 1.0
    life.coordinator._keep_journal()
    assert (life.keeper.is_behind, life.coordinator.held_up_by) == (False, "")
    assert life.push(collector, "p4", 4, 0)
    assert same(life.look(), Life(tmp_path, transport, "naive").look())


def test_replay_buffer_is_restored_even_if_no_state_was_saved(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    with failing_calls(("rename",), 1, errno.ENOSPC, persistent=True):
        learner = life.give("learner")
    assert life.keeper.is_behind
    after = Life(tmp_path, transport, "naive")
    assert after.scheduler.experiences.keys() == {learner.buffer_id}
    assert after.look()["iterations"] == {learner.task_id: 0}


def test_coordinator_that_lost_its_journal_acknowledges_nothing(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    life.give("learner")
    collector = life.collect()
    after = Life(tmp_path, transport, "naive")
    with pytest.raises(RunDirLockedError):
        life.push(collector, "p0", 0, 0)
    assert life.coordinator.status().samples.acknowledged == 0
    assert after.coordinator.status().samples.acknowledged == 0


def test_damaged_state_and_state_of_another_version_are_refused(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path / "a", transport, "naive")
    life.join("l0", "learner")
    life.give("learner")
    life.coordinator.note_evaluation({"mean": 9.0})
    state = life.coordinator.state_dict()
    with pytest.raises(CheckpointCorruptError):
        Life(tmp_path / "b", transport, "naive").coordinator.load_state_dict(
            {**state, "scheduler": {}}
        )
    ((name, found),) = state["experiences"].items()
    newer = {name: {**found, "buffer": {**found["buffer"], "version": 99}}}
    with pytest.raises(CheckpointVersionError):
        Life(tmp_path / "d", transport, "naive").coordinator.load_state_dict(
            {**state, "experiences": newer}
        )
    other = Life(tmp_path / "c", transport, "naive").coordinator
    other.load_state_dict(state)
    assert same(state["experiences"], other.state_dict()["experiences"])
    assert other.evaluations == [{"mean": 9.0}]
    assert same(
        {"tasks": state["scheduler"]["running"]},
        {"tasks": other.state_dict()["scheduler"]["running"]},
    )


def test_payload_that_is_reported_again_after_its_removal_counts_once(
    tmp_path: Path, transport: Any, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path, transport, "on-policy")
    learner, collector = life.begin(payloads=8)
    assert life.train(learner, 1, 0, lost=False)
    assert not transport.data_store().has("p0", 0.0)
    after = Life(tmp_path, transport, "on-policy")
    again = after.scheduler.running[collector.task_id]
    again.waiting = {"p0": ROWS}
    report = {"data_id": "p0", "rows": ROWS, "policy_iter": 0}
    assert after.coordinator.deal_with_collector_send_data(again, report)
    samples = after.coordinator.status().samples
    assert (samples.collected, samples.acknowledged) == (8 * ROWS, 8 * ROWS)
    assert "vanished" not in caplog.text
