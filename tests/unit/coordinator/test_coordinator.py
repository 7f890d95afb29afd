"""Unit tests of the coordinator; the tests act as its workers."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    ClosedError,
    DingError,
    StorageFullError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker import Coordinator
from dingsdk.worker.comm import Slave, WorkerInfo
from dingsdk.worker.commander.base import PlayerProgress
from dingsdk.worker.coordinator import TaskState
from dingsdk.worker.coordinator.admission import Admission
from dingsdk.worker.coordinator.live_payloads import LivePayloads, ServedPayloads
from dingsdk.worker.coordinator.on_policy import OnPolicyPayloads

from .commander import Commander

GRACE_S = 10.0


class Site:
    """A coordinator that is not started, with its commander and the calls of its callbacks."""

    def __init__(self, tmp_path: Path, *more: str, example: str = "cartpole-dqn") -> None:
        self.now = 100.0
        self.began: list[float] = []
        self.collected: list[Mapping[str, Any]] = []
        self.evaluated: list[tuple[Mapping[str, Any], Any]] = []
        sets = (
            "system.transport.concurrency=threads",
            f"system.coordinator.orphan_grace_s={GRACE_S}",
            "system.coordinator.max_learner_tasks=2",
            *more,
        )
        cfg = compile_run(example, "parallel", "in_memory", sets, 0)
        self.transport = default_manager().create("transports", cfg.system.transport, tmp_path)
        self.coordinator = Coordinator(
            cfg,
            self.transport,
            on_collecting=lambda: self.began.append(self.now),
            on_collected=self.collected.append,
            on_evaluated=lambda finished, model: self.evaluated.append((finished, model)),
            clock=lambda: self.now,
        )
        self.commander = Commander()
        self.coordinator.state.commander = self.commander

    def task(self, role: str = "collector", *, is_evaluation: bool = False) -> TaskState:
        task = {"task_id": "t", "buffer_id": "b", "collector_cfg": {"eval_flag": is_evaluation}}
        if role == "learner":
            task["replay_buffer_cfg"] = {}
        state = TaskState("t", role, task, self.now)
        state.worker = WorkerInfo("w0", role)
        return state

    @contextmanager
    def out(self, state: TaskState) -> Iterator[tuple[str, str]]:
        """Let a worker have a task within the context; yields its id and that of its buffer."""
        running = self.coordinator.state.running
        before = dict(running)
        running[state.task_id] = state
        yield state.task_id, state.buffer_id
        running.clear()
        running.update(before)

    def open_buffer(self, learner: TaskState) -> LivePayloads:
        self.coordinator.state.begin_home(learner)
        return self.coordinator.state.buffers[learner.buffer_id]

    def demand(self, task: TaskState, starved_at: int | None = None) -> dict[str, Any]:
        """Return the next message to a collector."""
        role: Any = self.coordinator.roles["collector"]
        found: dict[str, Any] = role._demand(self.coordinator, task, starved_at)
        return found

    def finish(self, *, is_evaluation: bool, **finished: Any) -> dict[str, Any]:
        info = {"step_count": 7, **finished}
        with self.out(self.task(is_evaluation=is_evaluation)) as (task_id, _):
            self.coordinator.deal_with_collector_finish_task(task_id, info)
        return info

    def send(self, *names: str, rows: int = 4) -> list[bool]:
        """Store payloads and announce them, as a collector does."""
        for name in names:
            self.coordinator.data_store.put(name, SampleBatch({"x": np.zeros(rows)}))
        meta = {"rows": rows, "policy_iter": 0}
        with self.out(self.task()) as ids:
            return [
                self.coordinator.deal_with_collector_send_data(*ids, name, meta) for name in names
            ]

    def hear(self, learner: TaskState, step: int = 0, **info: Any) -> None:
        """Report what a learner's home has done; ``left`` has (payload, rows) that left it."""
        payloads = self.coordinator.state.payloads_of(learner)
        left, reason = info.pop("left", []), info.pop("reason", "used_up")
        report = {
            "number": (payloads.confirmed if payloads else 0) + 1,
            "inserted": [name for name, _ in left],
            "lost": info.pop("lost", []),
            "left": [(name, reason, rows) for name, rows in left],
        }
        known = {"trained_rows": 0, "count": 0, "counts": {}, "figures": None, "is_idle": False}
        found = {"learner_step": step, "reports": [report], **known, **info}
        with self.out(learner) as ids:
            self.coordinator.deal_with_learner_send_info(*ids, found)

    def announced(self, learner: TaskState, most: int = 9) -> list[str]:
        """Return the ids of the payloads that the learner is told now."""
        with self.out(learner) as ids:
            news = self.coordinator.deal_with_learner_get_data(*ids, most, learner.progress)
        return [each["data_id"] for each in news or ()]

    def stored(self, *names: str) -> list[bool]:
        return [self.coordinator.data_store.has(name, 0.0) for name in names]

    def pass_time(self, seconds: float, step_s: float) -> None:
        """Advance the clock in steps, and run the dispatcher once per step."""
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            self.coordinator.dispatcher.notify()
            self.coordinator.dispatcher.dispatch_once()

    def hears(self, act: Callable[[], Any]) -> bool:
        """Return whether ``act`` wakes a waiting thread within seconds."""
        is_waiting, looks = threading.Event(), itertools.count()
        condition = self.coordinator.condition

        def look() -> bool:
            is_waiting.set()  # the lock is released with the wait
            return next(looks) > 0

        def wait() -> None:
            with condition:
                condition.wait_for(look, 30.0)

        waiter = threading.Thread(target=wait)
        waiter.start()
        is_waiting.wait(30.0)
        act()
        waiter.join(5.0)
        has_heard = not waiter.is_alive()
        self.coordinator.dispatcher.notify()
        waiter.join()
        return has_heard

    def close(self) -> None:
        self.coordinator.close()
        self.transport.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path)) as made:
        yield made


def test_finished_collecting_task_calls_on_collected_and_not_on_evaluated(site: Site) -> None:
    info = site.finish(is_evaluation=False, collector_done=False)
    assert site.collected == [info]
    assert site.evaluated == []
    assert site.commander.calls == [("finished", "t")]
    assert not site.coordinator.is_ending
    assert site.coordinator.status().env_steps == 7


def test_result_of_another_player_contains_its_name(site: Site) -> None:
    state = site.task()
    state.task = {**state.task, "player": "player_1"}
    with site.out(state) as (task_id, _):
        site.coordinator.deal_with_collector_finish_task(task_id, {"step_count": 3})
    assert site.collected == [{"step_count": 3, "player": "player_1"}]


def test_evaluated_policy_is_passed_to_the_callback_and_then_deleted(site: Site) -> None:
    store = site.coordinator.policy_store
    store.publish("t", {"w": np.arange(2.0)}, 5)
    info = site.finish(is_evaluation=True, collector_done=True, policy_id="t")
    ((found, model),) = site.evaluated
    assert (found, model["w"].tolist()) == ({**info, "env_steps": 0}, [0.0, 1.0])
    assert store.newest("t") is None
    assert site.collected == []
    assert not site.coordinator.end.has_reached_goal

    site.finish(is_evaluation=True, collector_done=True)
    assert site.evaluated[1][1] is None, "the policy was not published"


@pytest.mark.parametrize(("player", "env_steps"), [(None, 30), ("b", 50)])
def test_env_steps_of_an_evaluation_are_those_at_its_start(
    site: Site, player: str | None, env_steps: int
) -> None:
    evaluation = site.task(is_evaluation=True)
    if player is not None:
        evaluation.task = {**evaluation.task, "player": player}
        counts = {"a": PlayerProgress(1, 40), "b": PlayerProgress(1, 50)}
        site.commander.players = lambda: counts  # type: ignore[method-assign]
    site.finish(is_evaluation=False, step_count=30)
    site.coordinator.deal_with_task_started(evaluation)
    site.finish(is_evaluation=False, step_count=100)

    with site.out(evaluation) as (task_id, _):
        site.coordinator.deal_with_collector_finish_task(task_id, {"collector_done": True})

    assert site.evaluated[0][0]["env_steps"] == env_steps


def test_incomplete_evaluation_counts_as_failed(site: Site) -> None:
    site.commander.goal_is_reached = True
    site.coordinator.policy_store.publish("t", {"w": np.zeros(1)}, 5)
    site.finish(is_evaluation=True, collector_done=False, policy_id="t")
    assert site.evaluated == site.collected == []
    assert site.commander.failed == [("collector", "t")]
    assert site.coordinator.policy_store.newest("t") is None
    assert not site.coordinator.is_ending


def test_run_ends_when_its_goal_is_reached(site: Site) -> None:
    site.commander.goal_is_reached = True
    assert not site.coordinator.end.wait(0.0)
    site.finish(is_evaluation=True, collector_done=True)
    assert site.coordinator.end.has_reached_goal
    assert site.coordinator.end.wait(0.0)
    assert not site.coordinator.must_end(site.task(is_evaluation=True))


def test_run_ends_after_the_maximum_number_of_learner_tasks(site: Site) -> None:
    ends = []
    for has_trained_out in (True, False, True):
        with site.out(site.task("learner")) as (task_id, _):
            site.coordinator.deal_with_learner_finish_task(
                task_id, {}, has_trained_out=has_trained_out
            )
        ends.append(site.coordinator.is_ending)
    assert ends == [False, False, True]
    assert not site.coordinator.end.has_reached_goal


def test_close_before_start_does_not_end_the_run(site: Site) -> None:
    assert site.coordinator.close() == []
    assert not site.coordinator.is_ending
    task = site.task()
    assert not site.coordinator.end.wants_end_of(task)
    assert not site.coordinator.must_end(task)
    assert site.coordinator.end.train_out(0.0)
    assert list(site.coordinator.state.running.values()) == []

    assert site.coordinator.start()
    site.coordinator.close()
    assert site.coordinator.is_ending


def test_run_begins_with_its_first_collector(site: Site) -> None:
    assert (site.began, site.coordinator.state.clock.elapsed_s) == ([], 0.0)
    site.coordinator.deal_with_collecting()
    site.now += 5.0
    site.coordinator.deal_with_collecting()
    assert (site.began, site.coordinator.state.clock.elapsed_s) == ([100.0], 5.0)


def test_close_keeps_the_sample_counts_of_buffers(site: Site) -> None:
    learner = site.task("learner")
    site.coordinator.start()
    site.open_buffer(learner)
    site.send("a")
    for _ in range(2):
        assert site.coordinator.close() == []
    assert site.announced(learner) == [], "the buffer is closed"
    samples = site.coordinator.status().samples
    assert (samples.acknowledged, samples.live) == (4, 4)


def test_info_and_error_write_to_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dingsdk.worker.coordinator")
    site.coordinator.info("100 % done")
    site.coordinator.error("gone")
    found = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert found == [("INFO", "100 % done"), ("ERROR", "gone")]


def test_changes_wake_waiting_threads(site: Site) -> None:
    coordinator, learner = site.coordinator, site.task("learner")
    site.open_buffer(learner)
    assert site.hears(coordinator.dispatcher.notify)
    assert site.hears(lambda: site.send("a"))
    assert site.hears(lambda: site.hear(learner))
    assert site.hears(lambda: coordinator.end.finish_evaluations(0.0))
    assert site.hears(lambda: coordinator.dispatcher.fail(DingError("x")))


def test_progress_wakes_waiting_threads(site: Site) -> None:
    with site.out(site.task()) as (task_id, _):
        judge = site.coordinator.deal_with_collector_judge_finish
        assert site.hears(lambda: judge(task_id, {"cur_step": 8}))


@pytest.mark.parametrize(
    ("unroll_len", "players", "steps"), [(1, 1, 1), (4, 1, 4 * 8), (4, 2, 2 * (4 + 1) * 8)]
)
def test_collector_may_take_enough_steps_for_one_sample_per_env(
    tmp_path: Path, unroll_len: int, players: int, steps: int
) -> None:
    sets = ("policy.collect.n_sample=8", f"policy.collect.unroll_len={unroll_len}")
    with closing(Site(tmp_path, *sets, example="cartpole-ppo")) as site:
        if players > 1:
            site.commander.max_players = players  # type: ignore[attr-defined]
        site.open_buffer(site.task("learner"))
        site.send("a", rows=7)
        payloads = site.coordinator.state.payloads_of(site.task())
        assert isinstance(payloads, OnPolicyPayloads)
        assert payloads.admit("t")["step_limit"] == steps


def test_error_of_a_driver_ends_the_run_with_its_task_and_cause(site: Site) -> None:
    cause = ValueError("out of range")

    def drive(*_: Any) -> None:
        raise cause

    site.coordinator.roles = {
        **site.coordinator.roles,
        "collector": SimpleNamespace(drive=drive),  # type: ignore[dict-item]
    }
    site.coordinator.dispatcher.run_task(site.task())
    failure = site.coordinator.end.failure
    assert type(failure) is DingError
    assert str(failure) == "task t: ValueError: out of range"
    assert failure.__cause__ is cause
    assert site.commander.failed == [("collector", "t")]
    assert site.coordinator.is_ending
    assert site.coordinator.must_end(site.task(is_evaluation=True))


def test_ask_rejects_another_incarnation_and_its_timeout_names_the_config_key(
    tmp_path: Path,
) -> None:
    is_over = threading.Event()

    def wait(task: Mapping[str, Any]) -> Mapping[str, Any]:
        is_over.wait(60.0)
        return task

    site = Site(tmp_path, "system.coordinator.answer_timeout_s=0.05")
    coordinator, info = site.coordinator, WorkerInfo("w0", "collector", {"cpu": 1})
    worker = Slave(site.transport, info, callback_fn={"echo": dict, "wait": wait})
    try:
        worker.start(coordinator.master.start())
        state, joined = site.task(), coordinator.state.idle("collector")
        assert joined is not None
        state.worker = joined
        echo, key = {"name": "echo", "x": 1}, "start_timeout_s"
        assert coordinator.ask(state, echo, key)["x"] == 1
        with pytest.raises(TaskTimeoutError, match=r"system\.coordinator\.answer_timeout_s"):
            coordinator.ask(state, {"name": "wait"})
        state.worker = dataclasses.replace(joined, incarnation=joined.incarnation + 1)
        with pytest.raises(WorkerLostError):
            coordinator.ask(state, echo, key)
    finally:
        is_over.set()
        worker.close()
        coordinator.close()
        site.transport.close()


def test_rows_on_a_replay_server_are_counted_by_the_server(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "system.replay.type=server")) as site:
        learner = site.task("learner")
        site.open_buffer(learner)
        assert isinstance(site.coordinator.state.payloads_of(learner), ServedPayloads)
        meta, send = {"rows": 4, "policy_iter": 0}, site.coordinator.deal_with_collector_send_data
        with site.out(learner) as ids:
            assert send(*ids, "a", meta), "it is not in a store"
        site.hear(learner, count=6, figures={"pushed": 10, "overwritten": 4, "count": 6})
        samples = site.coordinator.status().samples
        assert (samples.acknowledged, samples.live, samples.evicted) == (10, 6, {"overwritten": 4})
        site.coordinator.validate_state()


def test_close_names_jobs_that_do_not_end_in_time(site: Site) -> None:
    go_on = threading.Event()
    site.coordinator.clock = time.monotonic
    address = site.coordinator.start()
    worker = site.transport.slave_end(address)
    worker.join(WorkerInfo("w0", "inference"), 20.0)
    for name in ("quick", "stubborn"):
        wait_s = 0.0 if name == "quick" else 60.0
        site.coordinator.dispatcher.spawn(lambda wait_s=wait_s: go_on.wait(wait_s) and None, name)
    began = time.monotonic()
    assert site.coordinator.close(timeout_s=2.0) == ["stubborn"]
    assert 1.5 < time.monotonic() - began < 30.0
    with pytest.raises(ClosedError):  # the job does not block it
        worker.next_task(20.0)
    assert site.coordinator.close() == []
    go_on.set()


def test_commander_is_told_to_increase_and_decrease_collector_tasks(site: Site) -> None:
    places = site.commander._collector_space
    site.coordinator.deal_with_increase_collector()
    assert places.max_val == 2
    site.coordinator.deal_with_decrease_collector()
    assert places.max_val == 1


def test_worker_of_an_unknown_role_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.coordinator.dispatcher.join(WorkerInfo("c0", "collector"))
    assert caplog.text == ""
    site.coordinator.dispatcher.join(WorkerInfo("x0", "painter"))
    assert "worker x0 joined as 'painter'" in caplog.text


def test_learner_is_told_each_payload_once_in_order_of_arrival(site: Site) -> None:
    learner, coordinator = site.task("learner"), site.coordinator
    assert site.announced(learner) == [], "it has no buffer"
    payloads = site.open_buffer(learner)
    site.finish(is_evaluation=False)
    assert (payloads.to_confirm, coordinator.state.env_steps_of(learner)) == (0, 7)
    assert site.send("b", "a", "b") == [True] * 3
    assert payloads.has_news
    assert site.announced(learner, most=1) == ["b"]
    assert payloads.has_news
    assert site.announced(learner) == ["a"]
    assert not payloads.has_news
    site.hear(learner, left=[("b", 1)], count=7)
    assert payloads.to_confirm == 1
    assert site.announced(learner) == []
    status = coordinator.status()
    assert (status.buffer_count, status.samples.live) == (7, 7)
    coordinator.validate_state()


def test_new_home_of_a_buffer_is_told_all_live_payloads_and_the_counts_of_the_last(
    site: Site,
) -> None:
    learner = site.task("learner")
    payloads = site.open_buffer(learner)
    assert payloads.for_new_home() == {"counts": None, "trained_rows": 0}
    site.send("a", "b", "c")
    assert site.announced(learner) == ["a", "b", "c"]
    site.hear(learner, left=[("a", 4), ("b", 1)], counts={"limiter": 3}, trained_rows=6)
    site.open_buffer(learner)  # for another worker
    assert payloads.for_new_home() == {"counts": {"limiter": 3}, "trained_rows": 6}
    assert payloads.to_confirm == 0
    assert site.announced(learner) == ["b", "c"]
    payloads.rejoin(["c"])  # as after a restart of the coordinator
    assert site.announced(learner) == ["b"]


def test_payload_is_deleted_when_no_buffer_needs_it(site: Site) -> None:
    learner = site.task("learner")
    assert site.send("a") == [True]
    assert site.stored("a") == [False]
    site.open_buffer(learner)
    site.send("b", "c", "d")
    site.hear(learner, left=[("b", 4), ("c", 3)], lost=[("d", "missing")], reason="overwritten")
    assert site.stored("b", "c", "d") == [False, True, False]
    assert site.coordinator.status().samples.evicted == {"overwritten": 7, "missing": 4}
    assert site.send("b") == [True], "a late repeat"
    assert site.stored("b") == [False]
    site.coordinator.validate_state()


def test_unused_samples_count_as_collected_but_not_as_acknowledged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    task, coordinator = site.task(), site.coordinator
    task.waiting = {"a": 4, "b": 5, "c": 6}
    coordinator.state.running["t"] = task
    coordinator.data_store.put("a", SampleBatch({"x": np.zeros(4)}))
    meta, send = {"rows": 4, "policy_iter": 0}, coordinator.deal_with_collector_send_data
    assert send("t", "b", "a", meta)
    assert caplog.messages == ["payload a is dropped: task t or buffer b has ended"]
    site.open_buffer(site.task("learner"))
    assert send("t", "b", "b", meta)
    assert caplog.messages[1:] == ["payload b vanished before it was acknowledged"]
    assert task.waiting == {"c": 6}
    samples = coordinator.status().samples
    assert (samples.collected, samples.acknowledged) == (15, 0)


def test_stored_payload_restarts_the_storage_timeout(site: Site) -> None:
    limit_s = site.coordinator.cfg.storage_timeout_s
    site.open_buffer(site.task("learner"))
    site.coordinator.deal_with_storage(site.task(), "the disk is full")
    site.pass_time(limit_s - 10.0, 1.0)
    site.send("p")
    site.pass_time(limit_s - 1.0, 1.0)
    assert site.coordinator.end.failure is None
    site.pass_time(2.0, 1.0)
    assert isinstance(site.coordinator.end.failure, StorageFullError)


@pytest.mark.parametrize(
    ("example", "sets", "limit"),
    [
        ("cartpole-dqn", ("system.max_env_steps=200",), 100),  # for one of two
        ("cartpole-dqn", (), None),
        ("cartpole-ppo", ("policy.collect.n_sample=8", "system.max_env_steps=70"), 8),
    ],
)
def test_env_steps_of_a_task_are_limited_by_those_of_the_run(
    tmp_path: Path, example: str, sets: tuple[str, ...], limit: int | None
) -> None:
    with closing(Site(tmp_path, *sets, example=example)) as site:
        site.open_buffer(site.task("learner"))
        assert site.coordinator.limits.of(site.task())["step_limit"] == limit
        assert site.coordinator.limits.of(site.task(is_evaluation=True)) == {"step_limit": None}


def test_new_collect_setting_is_sent_once(site: Site) -> None:
    task, settings = site.task(), iter([{"eps": 0.5}, {"eps": 0.5}, {"eps": 0.4}, None])
    site.commander.get_collect_setting = lambda task_id: next(settings)  # type: ignore[attr-defined]
    demands = [site.demand(task) for _ in range(4)]
    found = [demand.get("collect_setting") for demand in demands]
    assert found == [{"eps": 0.5}, None, {"eps": 0.4}, None]


@pytest.mark.parametrize("what", ["limit", "ending", "commander", "nothing"])
def test_collector_without_steps_is_asked_again_when_it_may_take_more_or_must_end(
    site: Site, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    coordinator, waits = site.coordinator, list[bool]()

    def wait_for(predicate: Callable[[], bool], timeout_s: float) -> bool:
        waits.append(predicate())
        if what == "limit":
            limits["step_limit"] = 41
        coordinator.end.is_over = what == "ending"
        site.commander.wants_end_of = lambda task_id: what == "commander"  # type: ignore[method-assign]
        waits.append(predicate())
        return waits[-1]

    limits: dict[str, int | None] = {"step_limit": 40}
    monkeypatch.setattr(coordinator.limits, "of", lambda state: limits)
    monkeypatch.setattr(coordinator.condition, "wait_for", wait_for)
    demand = site.demand(site.task(), 40)
    assert waits == [False, what != "nothing"]
    assert (demand["step_limit"], demand["ends_now"]) == (limits["step_limit"], what == "commander")


def test_status_has_the_last_reported_loss(site: Site) -> None:
    learner = site.task("learner")
    site.open_buffer(learner)
    assert site.coordinator.status().loss is None
    for step, loss in enumerate(({"loss": 0.5}, {}, {"loss": 0.25})):
        site.hear(learner, step, **loss)
        assert site.coordinator.status().loss == (0.5 if step < 2 else 0.25)


def test_end_of_a_task_clears_its_wait_for_storage_and_its_admitted_steps(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "policy.collect.n_sample=8", example="cartpole-ppo")) as site:
        coordinator, task = site.coordinator, site.task()
        site.open_buffer(site.task("learner"))
        payloads = coordinator.state.payloads_of(task)
        assert isinstance(payloads, OnPolicyPayloads)
        assert payloads.admit("t")["step_limit"] > 0
        coordinator.deal_with_storage(task, "the disk is full")
        coordinator.dispatcher.run_task(task)  # its worker has not joined, so it counts as lost
        assert not payloads.admission.is_any_outstanding
        assert coordinator.state.outage.text == ""


@pytest.mark.parametrize("is_ending", [False, True])
def test_worker_continues_its_task_unless_the_run_ends(
    site: Site, is_ending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = site.task("learner")
    waiting.worker, waiting.payload_prefix = None, "p"
    coordinator = site.coordinator
    coordinator.state.running["t"] = waiting
    continued: list[TaskState] = []
    dispatcher = coordinator.dispatcher
    monkeypatch.setattr(dispatcher, "_start", lambda state, goes_on: continued.append(state))
    coordinator.end.is_over = is_ending
    kept = {"task_id": "t", "payload_prefix": "p"}
    coordinator.dispatcher.join(WorkerInfo("l", "learner", {"task": kept}))
    assert continued == ([] if is_ending else [waiting])


def test_learner_info_updates_the_status_and_the_commander(site: Site) -> None:
    learner = site.task("learner")
    site.coordinator.state.running[learner.task_id] = learner
    assert list(site.coordinator.state.running.values()) == [learner]
    site.open_buffer(learner)
    info = {"learner_done": True}
    site.hear(learner, 9, **info)
    assert (site.coordinator.status().train_iter, learner.progress) == (9, 9)
    assert site.commander.calls == [("learned", 9)]
    assert site.coordinator.deal_with_learner_judge_finish("t", info)
    site.coordinator.deal_with_learner_finish_task("t", info)
    assert site.coordinator.state.payloads_of(learner) is None
    assert site.coordinator.status().train_iter == 9


def test_calls_for_unknown_tasks_change_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, before = site.coordinator, site.coordinator.status()
    coordinator.data_store.put("a", SampleBatch({"x": np.zeros(4)}))
    assert coordinator.deal_with_collector_send_data("x", "b", "a", {"rows": 4, "policy_iter": 0})
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert site.stored("a") == [True]  # it may belong to another task
    assert not coordinator.deal_with_collector_judge_finish("x", {"collector_done": True})
    coordinator.deal_with_collector_finish_task("x", {"step_count": 7})
    for call in (
        lambda: coordinator.deal_with_learner_get_data("x", "b", 1, 0),
        lambda: coordinator.deal_with_learner_send_info("x", "b", {"learner_step": 1}),
        lambda: coordinator.deal_with_learner_judge_finish("x", {"learner_done": True}),
        lambda: coordinator.deal_with_learner_finish_task("x", {}),
    ):
        with pytest.raises(RuntimeError, match="no learner task 'x'"):
            call()
    assert (site.commander.calls, coordinator.status()) == ([], before)
    learner = site.task("learner")
    site.hear(learner, 5)  # its buffer is closed
    assert (site.commander.calls, learner.progress) == ([], 0)


def test_quiet_run_is_logged_but_not_while_it_waits_for_storage(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.pass_time(32.0, 1.0)
    assert caplog.text.count("nothing has happened for 30 s: no learner has joined") == 1
    caplog.clear()
    site.coordinator.deal_with_storage(site.task(), "the disk is full")
    assert (site.coordinator.state.outage.text, site.coordinator.end.failure) == (
        "the disk is full",
        None,
    )
    site.pass_time(site.coordinator.cfg.storage_timeout_s + 2.0, 1.0)
    assert isinstance(site.coordinator.end.failure, StorageFullError)
    assert "nothing has happened" not in caplog.text


def test_error_in_the_dispatcher_ends_the_run(site: Site) -> None:
    def fail() -> None:
        raise KeyError("what")

    site.commander.get_learner_task = fail  # type: ignore[method-assign]
    site.coordinator.dispatcher.join(WorkerInfo("l0", "learner"))
    with pytest.raises(KeyError):
        site.coordinator.dispatcher.run()
    assert str(site.coordinator.end.failure) == "dispatcher: KeyError: 'what'"


def test_collecting_ends_when_the_started_collects_are_complete(site: Site) -> None:
    coordinator, found = site.coordinator, list[bool]()
    b, c = (OnPolicyPayloads(Admission(4, 0)) for _ in range(2))
    coordinator.state.buffers |= {"b": b, "c": c}
    coordinator.end.last_env_step = 10
    rows = iter(range(9))

    def push(payloads: OnPolicyPayloads, count: int) -> None:
        meta = {"data_id": str(next(rows)), "rows": count, "policy_iter": 0}
        payloads.push(meta, 0)
        found.append(coordinator.end.look_at_env_steps())

    push(b, 3)
    coordinator.state.totals.ended_env_steps = 10
    push(c, 4)  # complete at once, so it is not waited for
    assert not coordinator.end.train_out(0.0)
    push(b, 1)
    push(b, 1)  # part of the next collect, which is not waited for
    assert found == [False, False, True, True]
    coordinator.state.totals.ended_env_steps = 9  # a worker was lost, with its env steps
    push(c, 1)
    coordinator.state.totals.ended_env_steps = 10
    push(c, 2)
    push(c, 1)
    assert found[4:] == [False, True, True]


def test_training_continues_after_collecting_while_the_home_has_batches(site: Site) -> None:
    coordinator, collector, learner = site.coordinator, site.task(), site.task("learner")
    evaluator, collector.env_steps = site.task(is_evaluation=True), 49
    coordinator.end.last_env_step = 50
    site.open_buffer(learner)
    coordinator.state.running = {"c": collector, "l": learner}
    asked: list[str] = []
    site.commander.get_collector_task = lambda: asked.append("collector")  # type: ignore[assignment, func-returns-value]
    site.commander.get_eval_task = lambda: asked.append("evaluation")  # type: ignore[method-assign]
    site.commander.get_learner_task = lambda: asked.append("learner")  # type: ignore[assignment, func-returns-value]
    coordinator.dispatcher.join(WorkerInfo("c0", "collector"))
    coordinator.dispatcher.join(WorkerInfo("l0", "learner"))
    coordinator.dispatcher.dispatch_once()
    assert (asked, coordinator.end.wants_end_of(collector)) == (["learner", "collector"], False)
    collector.env_steps = 50
    assert coordinator.end.wants_end_of(collector)  # with the answer to its last report
    assert not coordinator.end.wants_end_of(evaluator)
    coordinator.dispatcher.dispatch_once()
    assert asked == ["learner", "collector", "learner", "evaluation"]
    assert not coordinator.end.train_out(0.0)
    assert not coordinator.must_end(collector)
    site.now += coordinator.cfg.answer_timeout_s  # the task did not end by itself
    assert coordinator.must_end(collector)
    assert not coordinator.must_end(evaluator)
    collector.env_steps = 49  # a worker was lost, with its env steps
    coordinator.dispatcher.dispatch_once()
    assert not coordinator.must_end(collector)
    collector.env_steps = 50
    site.hear(learner, is_idle=True)
    assert not coordinator.end.train_out(0.0)  # the collector may still send rows for a batch

    site.send("p", rows=8)
    del coordinator.state.running["c"]
    coordinator.state.totals.ended_env_steps = 50
    coordinator.dispatcher.dispatch_once()
    assert not coordinator.end.train_out(0.0)  # the learner has not been told of the last rows
    assert site.announced(learner) == ["p"]
    assert not coordinator.end.train_out(0.0)  # it has not answered
    site.hear(learner, is_idle=False)
    assert not coordinator.end.train_out(0.0)  # it is training
    site.hear(learner, is_idle=True)
    assert coordinator.end.train_out(0.0)
    coordinator.state.queues["learner"].append(learner)  # its worker was lost; it will be retried
    assert not coordinator.end.train_out(0.0)


@pytest.mark.parametrize(
    ("name", "sets", "waits"),
    [
        ("cartpole-dqn", (), True),
        ("cartpole-ppo", (), True),
        (
            "cartpole-dqn",
            (
                "policy.collect.n_episode=9",
                "policy.collect.collector={type: episode, get_train_sample: true}",
            ),
            True,
        ),
        ("cartpole-dqn", ("system.replay.type=server",), True),
        ("cartpole-dqn", ("policy.other.replay_buffer.limiter.type=push_sample_rate",), False),
    ],
)
def test_run_waits_for_updates_if_the_buffer_can_count_them(
    tmp_path: Path, name: str, sets: tuple[str, ...], waits: bool
) -> None:
    sets = (*sets, "system.max_env_steps=70", "system.transport.concurrency=threads")
    cfg = worker_config(compile_run(name, "parallel", "in_memory", sets, 0), tmp_path)
    transport = default_manager().create("transports", cfg.system.transport, tmp_path)
    coordinator = Coordinator(cfg, transport)
    assert coordinator.end.last_env_step == (70 if waits else None)
    transport.close()


def test_last_evaluation_is_repeated_if_its_worker_is_lost(site: Site) -> None:
    site.coordinator.end.finish_evaluations(0.0)
    site.coordinator.dispatcher.join(WorkerInfo("c0", "collector"))
    site.coordinator.dispatcher.dispatch_once()
    site.coordinator.dispatcher.run_task(
        site.task(is_evaluation=True)
    )  # w0 has not joined: it counts as lost
    assert not site.coordinator.end.finish_evaluations(0.0)
    site.coordinator.dispatcher.dispatch_once()  # the commander is asked again
    assert site.coordinator.end.finish_evaluations(0.0)
