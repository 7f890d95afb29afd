"""A coordinator restores the state of an earlier one from its journal."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.data.container import decode_json, encode_frame
from dingsdk.errors import (
    AuthError,
    CheckpointCorruptError,
    DingError,
    PortInUseError,
    RunDirLockedError,
    WorkerLostError,
)
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.runtime.files import Folder
from dingsdk.worker import Coordinator, create_buffer
from dingsdk.worker.comm import LEFT, WorkerInfo
from dingsdk.worker.coordinator import TaskState
from dingsdk.worker.coordinator.journal import Journal
from dingsdk.worker.coordinator.live_payloads import LivePayloads
from dingsdk.worker.coordinator.recovery import OrphanTasks
from dingsdk.worker.replay_buffer.home import Home, TableHome, TrainingHome
from dingsdk.worker.replay_buffer.table import Table
from tools.os_calls import failing_calls

BUFFER = "policy.other.replay_buffer."
KINDS: dict[str, tuple[str, ...]] = {
    "naive": ("cartpole-dqn",),
    "advanced": ("cartpole-dqn", f"{BUFFER}type=advanced", f"{BUFFER}max_use=3"),
    "on-policy": ("cartpole-ppo", "policy.collect.n_sample=32"),
}
ROWS = 8


class Learner:
    """A learner with the home of its rows, which outlives coordinators."""

    def __init__(self, life: Life, state: TaskState, train_iter: int = 0) -> None:
        self.state = state
        self.train_iter = train_iter
        self.trained_rows = 0
        told = life.payloads(state).for_new_home()
        store = life.coordinator.data_store
        self.home: Home

        def load(name: str, digest: str | None) -> SampleBatch:
            return store.get(name, 0.0)

        if life.kind == "on-policy":
            self.home = TrainingHome(load)
        else:
            buffer = create_buffer(life.cfg.policy.other.replay_buffer)
            self.home = TableHome(cast(Table, buffer), load, None, told["counts"])

    def train(self, batches: int = 1) -> None:
        for _ in range(batches):
            batch = self.home.sample(16, self.train_iter)
            if batch is not None:
                self.train_iter += 1
                self.trained_rows += len(batch)
                self.home.end_batch()

    def info(self, confirmed: int) -> dict[str, Any]:
        return {
            **self.home.report(confirmed),
            "learner_step": self.train_iter,
            "learner_done": False,
            "priority_info": {},
            "trained_rows": self.trained_rows,
            "is_idle": False,
        }

    def exchange(self, life: Life) -> list[str]:
        """Get announcements, train on a batch, and report; return the announced payloads."""
        confirmed, news = life.payloads(self.state).to_confirm, life.news(self.state)
        self.home.announce(news)
        self.train()
        self.send_info(life, confirmed)
        return [each["data_id"] for each in news]

    def send_info(self, life: Life, confirmed: int) -> None:
        ids = (self.state.task_id, self.state.buffer_id)
        life.coordinator.deal_with_learner_send_info(*ids, self.info(confirmed))

    def rejoin(self, life: Life) -> None:
        """Continue with a restarted coordinator."""
        self.state = life.scheduler.running[self.state.task_id]
        self.send_info(life, life.payloads(self.state).to_confirm)
        life.payloads(self.state).rejoin(self.home.known)


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
        self.kind, self.cfg = kind, worker_config(cfg, folder)
        self.now = 100.0
        journal = Journal(Folder(folder / "journal"), snapshot_facts=snapshot_facts)
        self.coordinator = Coordinator(
            self.cfg, transport, journal=journal, clock=lambda: self.now, **options
        )
        self.scheduler = self.coordinator.state
        self.keeper = self.coordinator.keeper
        self.coordinator._recover()

    def join(self, worker_id: str, role: str) -> None:
        self.scheduler.pool.add(WorkerInfo(worker_id, role, incarnation=1))

    def give(self, role: str) -> TaskState:
        """Assign the next task of the commander to a worker."""
        self.scheduler.produce(role)
        state = self.scheduler.assign(role)
        assert state is not None
        return state

    def replace_learner(self, state: TaskState) -> TaskState:
        """Lose the worker of a learner's task, and give the task to another one."""
        self.scheduler.end(state, WorkerLostError("it was killed", reason=LEFT))
        self.join(f"l{self.now}", "learner")
        return self.give("learner")

    def collect(self) -> TaskState:
        """End the first task, which is an evaluation, and return a collecting task."""
        evaluation = self.give("collector")
        finished = {"train_iter": 0, "reward_mean": 9.0, "step_count": 40, "collector_done": True}
        self.coordinator.deal_with_collector_finish_task(evaluation.task_id, finished)
        self.scheduler.end(evaluation, None)
        return self.give("collector")

    def begin(self, payloads: int) -> tuple[TaskState, TaskState]:
        """Start a learner and a collector, push payloads, and return both tasks."""
        self.join("l0", "learner")
        self.join("c0", "collector")
        learner, collector = self.give("learner"), self.collect()
        for number in range(payloads):
            self.push(collector, f"p{number}")
        return learner, collector

    def push(self, state: TaskState, name: str, iteration: int = 0) -> bool:
        self.coordinator.data_store.put(name, SampleBatch({"x": np.zeros(ROWS)}))
        meta: dict[str, Any] = {"rows": ROWS, "policy_iter": iteration}
        ids = (state.task_id, state.buffer_id)
        return self.coordinator.deal_with_collector_send_data(*ids, name, meta)

    def news(self, state: TaskState) -> list[dict[str, Any]]:
        """Return what the learner is told now."""
        ids = (state.task_id, state.buffer_id)
        return self.coordinator.deal_with_learner_get_data(*ids, 1000, state.progress) or []

    def payloads(self, state: TaskState) -> LivePayloads:
        found = self.coordinator.state.payloads_of(state)
        assert found is not None
        return found

    @property
    def orphans(self) -> OrphanTasks:
        """The tasks of the coordinator before."""
        return self.coordinator.dispatcher.orphans

    def look(self) -> dict[str, Any]:
        """Return the state without values that depend on clocks."""
        state = self.coordinator.state_dict()
        commander = decode_json("commander", state["commander"])
        state["commander"] = commander
        assert state.pop("elapsed_s") >= 0
        if commander["schedule"]["last"] is not None:
            commander["schedule"] = commander["schedule"]["last"][:2]
        return state


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


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
    task, collector = life.begin(0)
    learner = Learner(life, task)
    pushed = steps = 0
    acknowledged: Counter[str] = Counter()

    def push(name: str) -> None:
        if not life.push(collector, name, learner.train_iter):
            learner.exchange(life)
            assert life.push(collector, name, learner.train_iter)
        acknowledged[name] += 1

    for step in range(150):
        action = rng.integers(8)
        if action < 4:
            push(f"p{pushed if action else max(0, pushed - 3)}")  # sometimes a repeated one
            pushed += 1
        elif action < 6:
            learner.exchange(life)
        elif action == 6:
            steps += 5
            judge = life.coordinator.deal_with_collector_judge_finish
            judge(collector.task_id, {"cur_step": steps})
        else:
            life.keeper.save_if_due()
        if step % 30 == 29:
            confirmed = life.payloads(task).confirmed
            for _ in range(12):
                push(f"p{pushed}")
                pushed += 1
                learner.exchange(life)
                if life.payloads(task).confirmed > confirmed:
                    break  # the journal has everything up to here
            life.coordinator.validate_state()
            after = Life(tmp_path, transport, kind)
            assert same(life.look(), after.look())
            after.coordinator.validate_state()
            assert after.coordinator.status().samples == life.coordinator.status().samples
            life = after
            task, collector = (life.scheduler.running[each.task_id] for each in (task, collector))
            if (admission := life.payloads(task).admission) is not None:
                admission.forget(collector.task_id)  # it is not waited for
            if step % 60 == 59:
                task = life.replace_learner(task)
                learner = Learner(life, task, learner.train_iter)
            else:
                learner.rejoin(life)
    status = life.coordinator.status()
    assert (status.env_steps, status.train_iter) == (steps, learner.train_iter)
    # Counted without the coordinator: each accepted name counts once.
    assert status.samples.acknowledged == ROWS * len(acknowledged)
    left = {name for name in acknowledged if transport.data_store().has(name, 0.0)}
    assert left == set(life.payloads(task).live_ids())


@pytest.mark.parametrize("has_state", [False, True])
def test_payloads_that_a_coordinator_had_no_time_to_delete_are_deleted(
    tmp_path: Path, transport: Any, has_state: bool
) -> None:
    life = Life(tmp_path, transport, "on-policy", snapshot_facts=1 if has_state else 1000)
    task, _ = life.begin(4)
    learner = Learner(life, task)
    learner.exchange(life)  # its first answer
    assert learner.exchange(life) == ["p0", "p1", "p2", "p3"]
    store = transport.data_store()
    assert not store.has("p0", 0.0)
    for name in ("p0", "p3"):  # as if the coordinator had died before it deleted them
        store.put(name, SampleBatch({"x": np.zeros(ROWS)}))
    life.keeper.save_if_due()
    Life(tmp_path, transport, "on-policy")
    assert not any(store.has(name, 0.0) for name in ("p0", "p3"))


def test_saved_training_is_counted_once_over_restarts_of_learner_and_coordinator(
    tmp_path: Path, transport: Any
) -> None:
    """The learner is lost between its checkpoint and its report, and then the coordinator."""
    life = Life(tmp_path, transport, "on-policy", snapshot_facts=1000)
    task, collector = life.begin(4)
    learner = Learner(life, task)
    learner.exchange(life)
    assert len(life.news(task)) == 4
    task = life.replace_learner(task)
    learner = Learner(life, task, train_iter=1)  # the training is in its checkpoint
    learner.exchange(life)
    assert life.coordinator.status().samples.evicted == {"trained": 4 * ROWS}
    after = Life(tmp_path, transport, "on-policy", snapshot_facts=1000)
    assert same(life.look(), after.look())
    learner.rejoin(after)
    admission = after.payloads(task).admission
    assert admission is not None
    assert (admission.newest, admission.newest_iter) == (1, 1)
    for number in range(4, 8):
        assert after.push(collector, f"p{number}", 1)
    admission.forget(collector.task_id)  # it is not waited for
    assert learner.exchange(after) == ["p4", "p5", "p6", "p7"]


def test_tasks_of_workers_that_do_not_come_back_are_given_to_others(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    learner, collector = life.give("learner"), life.collect()
    life.push(collector, "p0")
    life.coordinator.deal_with_collector_judge_finish(collector.task_id, {"cur_step": 7})
    after = Life(tmp_path, transport, "naive")
    assert {each.task_id for each in after.orphans.tasks} == {
        learner.task_id,
        collector.task_id,
    }
    after.orphans.expire()
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


@pytest.mark.parametrize("refused", ["epoch.json", "secret", "port"])
def test_start_that_the_transport_refuses_removes_nothing(tmp_path: Path, refused: str) -> None:
    flask = pytest.importorskip("dingsdk_flask_fs.transport").FlaskFSTransport
    with ExitStack() as stack:
        first = stack.enter_context(closing(flask({}, tmp_path)))
        life = Life(tmp_path, first, "naive")
        learner, _ = life.begin(1)
        first.policy_store().publish(str(learner.task["policy_id"]), {"w": np.zeros(1)}, 30)
        first.close()
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        if refused != "port":
            (tmp_path / "transport" / refused).write_bytes(b"")
            (tmp_path / "transport" / refused).chmod(0o600)
        before = contents(tmp_path)

        port = taken.getsockname()[1] if refused == "port" else 0
        second = stack.enter_context(closing(flask({"port": port}, tmp_path)))
        with pytest.raises((AuthError, CheckpointCorruptError, PortInUseError)):
            Life(tmp_path, second, "naive")
    after = contents(tmp_path)
    if refused == "port":  # it is noticed later
        for name in ("journal/owner.json", "transport/lock"):
            before[name] = after[name]
    assert after == before


def test_task_of_a_worker_that_comes_back_without_it_is_given_to_others_at_once(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    learner, collector = life.begin(payloads=1)
    after = Life(tmp_path, transport, "naive", rejoin_s=30.0)
    over = {"task_id": collector.task_id, "payload_prefix": collector.payload_prefix}
    for prefix, waiting in (("other", [learner, collector]), (collector.payload_prefix, [learner])):
        task = {**over, "payload_prefix": prefix, "is_over": True}
        after.coordinator.dispatcher.join(
            WorkerInfo("c0", "collector", {"task": task}, incarnation=2)
        )
        found = {each.task_id for each in after.orphans.tasks}
        assert found == {each.task_id for each in waiting}
    assert after.give("collector").task_id == collector.task_id
    assert after.coordinator.status().samples.live == ROWS


def test_collector_of_an_earlier_coordinator_is_waited_for_until_the_rejoin_timeout(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "on-policy")
    learner, _ = life.begin(payloads=4)
    after = Life(tmp_path, transport, "on-policy", rejoin_s=30.0)
    admission = after.payloads(learner).admission
    assert admission is not None
    for seconds, is_waited_for in ((0.0, True), (29.5, True), (0.5, False)):
        after.now += seconds
        after.coordinator.dispatcher.dispatch_once()
        assert admission.is_any_outstanding is is_waited_for
        assert (after.orphans.tasks != []) is is_waited_for


def test_paused_coordinator_notices_that_another_one_took_its_journal(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    Life(tmp_path, transport, "naive")
    life.keeper.check_owner()  # it checked a moment ago
    life.now += life.coordinator.cfg.lease_s
    with pytest.raises(RunDirLockedError):
        life.keeper.check_owner()


def test_env_steps_of_a_finished_task_are_restored_before_its_end(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    _, collector = life.begin(payloads=1)
    life.now += 3.0
    life.coordinator.deal_with_collecting()
    life.now += 4.0
    life.coordinator.deal_with_collector_finish_task(collector.task_id, {"step_count": 24})
    after = Life(tmp_path, transport, "naive")
    assert after.coordinator.status().env_steps == 24
    assert after.scheduler.clock.elapsed_s == 4.0


def test_ended_and_queued_tasks_are_restored(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    life.join("c0", "collector")
    life.give("learner")
    life.collect()
    life.join("c1", "collector")
    life.coordinator.note_evaluation({"mean": 9.0})
    life.scheduler.produce("collector")  # it waits for a worker
    for _ in range(2):  # from the facts, and then from the saved state
        after = Life(tmp_path, transport, "naive")
        assert same(life.look(), after.look())
    assert after.scheduler.totals.evaluations == [{"mean": 9.0}]
    after.join("c1", "collector")
    after.orphans.expire()
    assert not after.give("collector").is_evaluation


def test_finished_learner_task_is_not_repeated_by_the_next_coordinator(
    tmp_path: Path, transport: Any
) -> None:
    two = ["system.coordinator.max_learner_tasks=2"]
    life = Life(tmp_path, transport, "naive", more=two)
    life.join("l0", "learner")
    first = life.give("learner")
    finished = {"task_id": first.task_id, "buffer_id": first.buffer_id}
    life.coordinator.deal_with_learner_finish_task(first.task_id, finished)
    life.scheduler.end(first, None)

    after = Life(tmp_path, transport, "naive", more=two)
    assert not after.orphans.tasks
    assert not after.scheduler.buffers
    after.join("l0", "learner")
    second = after.give("learner")
    assert second.task_id != first.task_id
    assert not after.coordinator.system_shutdown_flag
    finished = {"task_id": second.task_id, "buffer_id": second.buffer_id}
    after.coordinator.deal_with_learner_finish_task(second.task_id, finished)
    assert after.coordinator.system_shutdown_flag


def test_task_whose_error_ended_the_run_is_resumed(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path, transport, "naive")
    life.join("l0", "learner")
    learner = life.give("learner")
    error, is_fatal = life.scheduler.end(learner, DingError("no memory left"))
    assert (str(error), is_fatal) == ("no memory left", True)
    after = Life(tmp_path, transport, "naive")
    (left,) = after.orphans.tasks
    assert left.task_id == learner.task_id
    after.orphans.expire()
    after.join("l0", "learner")
    assert after.give("learner").task["resume"]


def test_nothing_is_acknowledged_or_announced_while_the_journal_disk_is_full(
    tmp_path: Path, transport: Any
) -> None:
    life = Life(tmp_path, transport, "naive")
    task, collector = life.begin(payloads=2)
    learner = Learner(life, task)
    assert learner.exchange(life) == ["p0", "p1"]
    assert life.push(collector, "p2")
    with failing_calls(("writev", "write"), 1, errno.ENOSPC, persistent=True):
        assert not life.push(collector, "p3")
        assert "ENOSPC" in life.scheduler.outage.text
        assert learner.exchange(life) == ["p2"]  # its report is true: the journal is behind
        assert life.keeper.is_behind
        payloads = life.payloads(task)
        payloads.rejoin(())
        assert (payloads.has_news, payloads.take_news(), payloads.to_confirm) == (False, [], 0)
        payloads.rejoin(learner.home.known)
        life.keeper.save_if_due()
        assert not life.push(collector, "p3")
    assert life.keeper.is_behind
    life.keeper.save_if_due()  # too soon after the last try
    assert life.keeper.is_behind
    life.now += 1.0
    life.keeper.save_if_due()
    assert (life.keeper.is_behind, life.scheduler.outage.text) == (False, "")
    assert life.push(collector, "p3")
    assert life.payloads(task).has_news
    assert learner.exchange(life) == ["p3"]
    assert same(life.look(), Life(tmp_path, transport, "naive").look())


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
        life.push(collector, "p0")
    assert life.coordinator.status().samples.acknowledged == 0
    assert after.coordinator.status().samples.acknowledged == 0


def test_damaged_state_is_refused(tmp_path: Path, transport: Any) -> None:
    life = Life(tmp_path / "a", transport, "naive")
    life.begin(2)
    life.coordinator.note_evaluation({"mean": 9.0})
    state = life.coordinator.state_dict()
    (buffer_id,) = state["buffers"]
    damaged: list[Any] = [{"live": []}, {"live": [1]}]
    cases = [{"buffers": {buffer_id: each}} for each in damaged]
    for wrong in (*cases, {"running": [{}]}, {"commander": b"{"}):
        with pytest.raises(CheckpointCorruptError):
            Life(tmp_path / "b", transport, "naive").coordinator.load_state_dict({**state, **wrong})
    other = Life(tmp_path / "c", transport, "naive").coordinator
    other.load_state_dict(state)
    assert same(state["buffers"], other.state_dict()["buffers"])
    assert other.state.totals.evaluations == [{"mean": 9.0}]
    assert same(
        {"tasks": state["running"]},
        {"tasks": other.state_dict()["running"]},
    )
