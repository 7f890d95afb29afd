"""A collector and a learner do whole tasks for a master, with a real policy."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dingsdk_in_memory.stores import MemoryDataStore

from dingsdk.data import SampleBatch
from dingsdk.errors import StorageFullError, TaskFailedError
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.policy import create_policy
from dingsdk.worker.comm import BaseCommCollector, BaseCommLearner, Master, SendPolicyHook
from dingsdk.worker.commander.tasks import collector_task, learner_task
from dingsdk.worker.learner.hooks import LoadCkptHook
from dingsdk.worker.replay_buffer.home import Home

PATIENCE_S = 30.0
ROWS, BATCH = 32, 8
SETS = (
    "env.collector_env_num=2",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "env.collector_episode_num=3",
    f"policy.collect.n_sample={ROWS}",
    f"policy.learn.batch_size={BATCH}",
    "policy.learn.learner.train_iterations=5",
    "policy.learn.learner.hook.save_ckpt_after_run=true",
)


class Bench:
    """A master, a learner and a collector of one run."""

    def __init__(
        self, tmp_path: Path, learner_class: type[BaseCommLearner] = BaseCommLearner
    ) -> None:
        self.cfg = compile_run("cartpole-dqn", "parallel", "in_memory", SETS, 0)
        transport = {"type": "in_memory", "concurrency": "threads"}
        self.transport = default_manager().create("transports", transport, tmp_path)
        self.master = Master(self.transport.master_end(), self.transport.scheduler)
        address = self.master.start()
        self.learner = learner_class({"send_policy_freq": 2}, self.transport, "l0")
        self.collector = BaseCommCollector({}, self.transport, "c0")
        for worker in (self.learner, self.collector):
            worker.start(address)

    def ask(self, worker_id: str, name: str, **data: Any) -> Mapping[str, Any]:
        return self.master.ask(worker_id, {"name": name, **data}, PATIENCE_S)

    def publish(self, version: int = 3) -> None:
        """Publish the policy of a learner that has not trained."""
        mode = create_policy(self.cfg["policy"], enable_field=["learn"], seed=1).learn_mode
        self.transport.policy_store().publish("p", mode.state_dict()["model"], version)

    def collect(self, **task_info: Any) -> Mapping[str, Any]:
        eval_flag = bool(task_info.pop("eval_flag", False))
        setting = {} if eval_flag else {"eps": 0.5}
        task = collector_task(
            self.cfg, "t1", "b1", "p", number=0, collect_setting=setting, eval_flag=eval_flag
        )
        return self.ask("c0", "collector_start_task", task_info={**task, **task_info})

    def reports(self) -> list[Mapping[str, Any]]:
        """Ask for data until the collector has ended, and return all reports."""
        reports: list[Mapping[str, Any]] = []
        answer: Mapping[str, Any] = {"has_ended": False}
        while not answer["has_ended"]:
            answer = self.ask("c0", "collector_data_task")
            assert (answer["task_id"], answer["buffer_id"]) == ("t1", "b1")
            reports += answer["reports"]
        return reports

    def learner_task(self, **changes: Any) -> dict[str, Any]:
        """Return the learner task t2; ``changes`` are of its learner's section."""
        task = learner_task(self.cfg, "t2", "b2", "p2", number=0)
        task["learner_cfg"] |= changes
        return {**task, "home": {"pace": None, "counts": None, "trained_rows": 0}}

    def start_learner(self, **task_info: Any) -> Mapping[str, Any]:
        """Start the learner task t2; return the announcement of a collected payload."""
        self.publish()
        self.collect()
        report = next(report for report in self.reports() if "data_id" in report)
        task = task_info or self.learner_task()
        self.ask("l0", "learner_start_task", task_info=task)
        return {"data_id": report["data_id"], "rows": report["rows"], "env_steps": report["rows"]}

    def learn(self, *announcements: Mapping[str, Any], **data: Any) -> Mapping[str, Any]:
        """Exchange messages with the learner once."""
        told = {"announcements": list(announcements), "confirmed": 0, "env_steps": 123, **data}
        return self.ask("l0", "learner_learn_task", data=told)

    def train(self, *announcements: Mapping[str, Any]) -> dict[str, Any]:
        """Exchange messages until the learner has nothing to train on; return its info."""
        info = self.learn(*announcements)["info"]
        while not info["is_idle"]:
            info = self.learn()["info"]
        return dict(info)

    def version(self) -> int | None:
        """Return the newest published version of the learner's policy."""
        found = self.transport.policy_store().newest("p2")
        return None if found is None else found[0]

    def close(self) -> None:
        for worker in (self.collector, self.learner):
            worker.close()
        self.master.close()
        self.transport.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_collector_announces_its_stored_payloads_and_ends_with_counts(bench: Bench) -> None:
    bench.publish()
    bench.collect(payload_prefix="run7")
    reports = bench.reports()

    payloads = [report for report in reports if "data_id" in report]
    store = bench.transport.data_store()
    for report in payloads:
        stored = store.get(report["data_id"])
        assert report["data_id"].startswith("run7-")
        assert (len(stored), report["policy_iter"]) == (report["rows"], 3)
    assert [report["collector_done"] for report in reports if "data_id" not in report][-1]
    info = bench.ask("c0", "collector_close_task")
    assert (info["task_id"], info["buffer_id"], info["real_episode_count"]) == ("t1", "b1", 6)
    assert info["sample_count"] == sum(report["rows"] for report in payloads) > 0
    assert "policy_id" not in info
    with pytest.raises(TaskFailedError, match="runs no collector"):
        bench.ask("c0", "collector_close_task")


def test_collector_without_a_task_reports_nothing_and_cannot_be_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.collector.ANSWER_WITHIN_S", 0.0)
    answer = bench.ask("c0", "collector_data_task", collect_setting={"eps": 0.5}, ends_now=True)
    assert (answer["reports"], answer["has_ended"], answer["task_id"]) == ([], False, None)
    with pytest.raises(TaskFailedError, match="c0 runs no collector") as caught:
        bench.ask("c0", "collector_close_task")
    assert caught.value.result == {"message": "no collector"}


def test_evaluated_policy_is_published_under_the_id_of_its_task(bench: Bench) -> None:
    bench.publish(version=4)
    bench.collect(eval_flag=True)
    assert bench.reports()
    info = bench.ask("c0", "collector_close_task")
    assert (info["policy_id"], info["train_iter"], len(info["reward_raw"])) == ("t1", 4, 2)
    found, evaluated = (bench.transport.policy_store().newest(each) for each in ("p", "t1"))
    assert found is not None
    assert evaluated is not None
    assert evaluated[0] == 4
    assert np.array_equal(
        *(np.asarray(next(iter(model.values()))) for model in (found[1], evaluated[1]))
    )
    assert bench.collector._policy_model is None  # its memory was freed


@pytest.mark.parametrize(("worker_id", "role"), [("c0", "collector"), ("l0", "learner")])
def test_close_task_fails_if_the_job_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, worker_id: str, role: str
) -> None:
    worker: Any = getattr(bench, role)
    over = threading.Event()
    worker._collector = worker._learner = SimpleNamespace()
    worker.start_job(lambda: over.wait(PATIENCE_S) and None, lambda: None, "job")
    monkeypatch.setattr(worker._job, "join", lambda timeout_s: False)  # as after 5 s
    with pytest.raises(TaskFailedError, match=f"{worker_id}: the {role} hangs") as caught:
        bench.ask(worker_id, f"{role}_close_task")
    assert caught.value.result == {"message": "stuck"}
    over.set()


def test_newer_progress_replaces_older_unsent_progress(bench: Bench) -> None:
    counts = ("collector_done", "cur_episode", "cur_sample", "cur_step")
    for step, more in (
        (1, {"delivered_steps": 5, "policy_iter": 0}),
        (2, {}),
        (3, None),
        (4, {}),
        (5, {}),
    ):
        progress = {**dict.fromkeys(counts, 0), "cur_step": step}
        payload = {"data_id": "d", "policy_iter": 0, "cur_step": step}
        bench.collector.send_metadata(payload if more is None else progress | more)
    reports = bench.ask("c0", "collector_data_task")["reports"]
    assert [report["cur_step"] for report in reports] == [2, 3, 5]
    assert [report.get("delivered_steps") for report in reports] == [5, None, None]


def test_ending_task_sends_all_samples_and_the_next_one_continues_its_episodes(
    bench: Bench,
) -> None:
    bench.publish()
    cfg = collector_task(bench.cfg, "t1", "b1", "p", number=0, collect_setting={"eps": 0.5})
    env = {**cfg["collector_cfg"]["env"], "collector_episode_num": 10**6}
    endless = {"collector_cfg": {**cfg["collector_cfg"], "env": env}}
    for _ in range(2):
        bench.collect(**endless)
        found = list(bench.ask("c0", "collector_data_task")["reports"])
        found += bench.ask("c0", "collector_data_task", ends_now=True)["reports"]
        rows = [each["rows"] for each in [*found, *bench.reports()] if "rows" in each]
        info = bench.ask("c0", "collector_close_task")
        assert info["sample_count"] == sum(rows) == info["step_count"] > 0
        assert not info["collector_done"]
        unfinished = bench.collector._env_pool._idle["collector"][2]
        assert unfinished is not None


def test_collector_retries_to_store_a_payload_until_there_is_room(
    bench: Bench, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.collector.STORAGE_PAUSE_S", 0.01)
    bench.publish()
    refusals, pauses_s, pause = [3], [], bench.collector.pause
    monkeypatch.setattr(
        bench.collector, "pause", lambda seconds: pauses_s.append(seconds) or pause(seconds)
    )

    class Narrow(MemoryDataStore):
        def put(self, data_id: str, batch: SampleBatch) -> None:
            if refusals[0]:
                refusals[0] -= 1
                raise StorageFullError("the disk is full", path="data", reason="ENOSPC")
            super().put(data_id, batch)

    monkeypatch.setattr(bench.collector, "data_store", Narrow())
    bench.collect()
    rows = sum(report["rows"] for report in bench.reports() if "data_id" in report)
    assert rows == bench.ask("c0", "collector_close_task")["sample_count"]
    assert (refusals, pauses_s.count(0.01)) == ([0], 3)
    assert bench.collector._held_up_by == ""
    assert caplog.text.count("the disk is full; trying again every") == 1


def test_reports_are_sent_only_after_their_payloads_are_stored(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.collector.ANSWER_WITHIN_S", 0.05)
    bench.publish()
    refusals, unsent = [3], {}

    class Batching(MemoryDataStore):
        def put_soon(self, data_id: str, batch: SampleBatch) -> None:
            unsent[data_id] = batch

        def flush(self) -> None:
            if unsent and refusals[0]:
                refusals[0] -= 1
                raise StorageFullError("the disk is full", path="data", reason="ENOSPC")
            while unsent:
                self.put(*unsent.popitem())

    store = Batching()
    monkeypatch.setattr(bench.collector, "data_store", store)
    bench.collect()
    answer: Mapping[str, Any] = {"has_ended": False}
    rows, held_up = 0, 0
    while not answer["has_ended"]:
        answer = bench.ask("c0", "collector_data_task")
        held_up += answer["held_up_by"] != ""
        for report in answer["reports"]:
            if "data_id" in report:
                rows += len(store.get(report["data_id"], 0.0))
    assert (refusals, held_up) == ([0], 3)
    assert rows == bench.ask("c0", "collector_close_task")["sample_count"]


def test_collector_repeats_unacknowledged_reports_before_it_tells_its_delivered_steps(
    bench: Bench,
) -> None:
    collector, is_over = bench.collector, threading.Event()
    collector._task_info = {"task_id": "t1", "buffer_id": "b1"}
    collector.start_job(is_over.wait, is_over.set, "collector")
    delivered = {"delivered_steps": 5, "policy_iter": 2}
    collector.send_metadata({"data_id": "d0", "policy_iter": 2, "cur_step": 1})
    collector._delivered = delivered
    ids = {"task_id": "t1", "buffer_id": "b1"}
    limits = {"step_limit": None}

    for _ in range(2):  # a report is acknowledged only by the next request
        reports = bench.ask("c0", "collector_data_task")["reports"]
        assert [report["data_id"] for report in reports] == ["d0"]
        assert bench.ask("c0", "collector_go_on_task", task_id="t1") == limits | ids
    with pytest.raises(TaskFailedError, match="c0 has no t3"):
        bench.ask("c0", "collector_go_on_task", task_id="t3")
    collector._reports.clear()
    found = bench.ask("c0", "collector_go_on_task", task_id="t1")
    assert found == limits | delivered | ids


def test_data_task_sets_the_steps_and_their_policy(bench: Bench) -> None:
    found: list[Any] = []
    collector = bench.collector

    def wait_for(*taken: int) -> None:
        found.extend(collector.await_steps(steps) for steps in taken)

    collector._limits = (8, 1)
    collector.start_job(lambda: wait_for(8, 15), lambda: None, "collector")
    bench.ask("c0", "collector_data_task", step_limit=16, policy_iter=2)
    collector.stop_job()
    collector.start_job(lambda: wait_for(16), lambda: None, "collector")
    collector.stop_job()
    assert found == [(16, 2), (16, 2), (16, 0)]


def test_learner_trains_on_announced_rows_publishes_and_ends(bench: Bench) -> None:
    announced = bench.start_learner()
    ids = {"task_id": "t2", "buffer_id": "b2"}
    first = bench.train()
    assert (first["learner_step"], first["reports"], first["count"]) == (0, [], 0)
    assert bench.version() == 0
    missing = {"data_id": "nowhere", "rows": 8}
    last = bench.train(missing, announced)
    assert (last["learner_step"], last["learner_done"]) == (5, True)
    assert (last["trained_rows"], last["count"]) == (5 * BATCH, announced["rows"])
    reports = last["reports"]
    assert [name for each in reports for name in each["inserted"]] == [announced["data_id"]]
    assert [each for report in reports for each in report["lost"]] == [("nowhere", "missing")]
    assert bench.learner._learner.collector_envstep == 123
    assert bench.learn(confirmed=reports[-1]["number"])["info"]["reports"] == []
    assert bench.version() == 5
    learner = weakref.ref(bench.learner._learner)
    closed = bench.ask("l0", "learner_close_task")
    assert closed.items() >= ids.items()
    assert closed["info"]["learner_step"] == 5
    gc.collect()
    assert learner() is None  # its memory was freed
    for name, data in (("learner_learn_task", {"data": {}}), ("learner_close_task", {})):
        with pytest.raises(TaskFailedError, match="this learner has no task"):
            bench.ask("l0", name, **data)


def test_resumed_learner_reports_its_checkpoint_first_and_ends_as_without_a_break(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, load = bench.start_learner(), LoadCkptHook.__call__

    def load_slowly(hook: LoadCkptHook, engine: Any) -> None:
        threading.Event().wait(4 * Home.exchange_s)
        load(hook, engine)

    assert bench.train(announced)["learner_step"] == 5
    bench.ask("l0", "learner_close_task")
    monkeypatch.setattr(LoadCkptHook, "__call__", load_slowly)
    # A learner that was lost at its limit does not train again.
    for limit, resume, wanted in ((7, True, 7), (1, True, 7), (2, False, 2)):
        task = bench.learner_task(train_iterations=limit)
        bench.ask("l0", "learner_start_task", task_info={**task, "resume": resume})
        begin = wanted if limit == 1 else 5 * resume
        assert bench.learn()["info"]["learner_step"] == begin
        info = bench.train(announced)
        assert (info["learner_step"], info["learner_done"]) == (wanted, True)
        bench.ask("l0", "learner_close_task")


@pytest.mark.parametrize(("unreported", "counted"), [(3, 3), (0, 0), (-4, 0)])
def test_resumed_learner_counts_the_rows_that_were_trained_on_but_not_reported(
    bench: Bench, unreported: int, counted: int
) -> None:
    trained = bench.train(bench.start_learner())["trained_rows"]
    bench.ask("l0", "learner_close_task")
    task = {**bench.learner_task(train_iterations=5), "resume": True}
    home = {**task["home"], "trained_rows": trained - unreported}
    bench.ask("l0", "learner_start_task", task_info={**task, "home": home})
    info = bench.ask("l0", "learner_close_task")["info"]
    assert (info["learner_step"], info["trained_rows"]) == (5, counted)


def test_learner_without_a_checkpoint_logs_it_and_reports_iteration_0(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench.ask("l0", "learner_start_task", task_info={**bench.learner_task(), "resume": True})
    text = f"l0 begins with new weights: there is no checkpoint in {tmp_path / 'ckpt'}"
    assert text in caplog.messages
    # The coordinator may know only the iteration of an earlier learner, which was lost.
    assert bench.ask("l0", "learner_close_task")["info"]["learner_step"] == 0


def test_learner_repeats_to_a_new_coordinator_what_the_old_one_did_not_confirm(
    bench: Bench,
) -> None:
    announced = bench.start_learner()
    bench.train()
    with pytest.raises(TaskFailedError, match="l0 has no t3"):
        bench.ask("l0", "learner_go_on_task", task_id="t3")
    before = bench.train(announced)
    for confirmed, reports in ((0, before["reports"]), (before["reports"][-1]["number"], [])):
        kept = bench.ask("l0", "learner_go_on_task", task_id="t2", confirmed=confirmed)
        assert (kept["task_id"], kept["known"]) == ("t2", [announced["data_id"]])
        assert kept["info"]["reports"] == reports
        assert kept["info"]["learner_step"] == 5


def test_last_policy_of_a_learner_replaces_newer_ones_of_a_lost_learner(bench: Bench) -> None:
    policies = bench.transport.policy_store()
    policies.publish("p2", {"w": np.zeros(1)}, 50)
    bench.ask("l0", "learner_start_task", task_info=bench.learner_task())
    bench.train()
    assert bench.version() == 50  # collectors get no older one
    bench.ask("l0", "learner_close_task")
    assert bench.version() == 0


@pytest.mark.parametrize(
    ("position", "ext_args", "rank", "versions"),
    [
        ("before_run", None, 0, [0, 1, 2, 3, 4, 5]),
        ("after_iter", None, 0, [1, 2, 3, 4, 5, 6]),
        ("after_iter", {"send_policy_freq": 3}, 0, [3, 6]),
        ("after_iter", None, 1, []),
    ],
)
def test_policies_are_sent_every_send_policy_freq_updates_by_rank_0(
    position, ext_args, rank, versions
) -> None:
    hook, sent = SendPolicyHook("send", position=position, ext_args=ext_args), []
    policy = SimpleNamespace(state_dict=lambda: {"model": "tensors"})
    for train_iter in range(6):
        hook(
            SimpleNamespace(
                train_iter=train_iter, rank=rank, policy=policy, send_policy=sent.append
            )
        )
    assert sent == [{"model": "tensors", "iter": version} for version in versions]
