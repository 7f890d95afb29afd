"""What a coordinator makes of the ends of tasks and of the run; its workers are the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import DingError
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker import Coordinator
from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.coordinator import TaskState

GRACE_S = 10.0


class Commander:
    """Says what the test tells it, and remembers what it was told."""

    def __init__(self) -> None:
        self.goal_is_reached = False
        self.calls: list[tuple[str, Any]] = []

    def finish_collector_task(self, task_id: str, info: Mapping[str, Any]) -> bool:
        self.calls.append(("finished", task_id))
        return self.goal_is_reached

    def finish_learner_task(self, task_id: str, info: Mapping[str, Any]) -> str:
        self.calls.append(("finished", task_id))
        return "b"

    def notify_fail_collector_task(self, task: Mapping[str, Any]) -> None:
        self.calls.append(("failed", task["task_id"]))

    def increase_collector_task_space(self) -> None:
        self.calls.append(("space", 1))

    def decrease_collector_task_space(self) -> None:
        self.calls.append(("space", -1))


class Site:
    """A coordinator that was not started, its commander, and what it reported."""

    def __init__(self, tmp_path: Path) -> None:
        self.now = 100.0
        self.collected: list[Mapping[str, Any]] = []
        self.evaluated: list[tuple[Mapping[str, Any], Any]] = []
        sets = (
            "system.transport.concurrency=threads",
            f"system.coordinator.orphan_grace_s={GRACE_S}",
            "system.coordinator.max_learner_tasks=2",
        )
        cfg = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 0)
        self.transport = default_manager().create("transports", cfg.system.transport, tmp_path)
        self.coordinator = Coordinator(
            cfg,
            self.transport,
            on_collected=self.collected.append,
            on_evaluated=lambda finished, model: self.evaluated.append((finished, model)),
            clock=lambda: self.now,
        )
        self.commander = Commander()
        self.coordinator._state.commander = self.commander  # type: ignore[assignment]

    def task(self, role: str = "collector", *, is_evaluation: bool = False) -> TaskState:
        task = {"task_id": "t", "buffer_id": "b", "collector_cfg": {"eval_flag": is_evaluation}}
        state = TaskState("t", role, task, self.now)
        state.worker = WorkerInfo("w0", role)
        return state

    def finish(self, *, is_evaluation: bool, **finished: Any) -> dict[str, Any]:
        info = {"step_count": 7, **finished}
        state = self.task(is_evaluation=is_evaluation)
        self.coordinator.deal_with_collector_finish_task(state, info)
        return info


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.coordinator.close()
    made.transport.close()


def test_collecting_task_is_told_to_who_counts_and_not_to_who_keeps_the_best(site: Site) -> None:
    info = site.finish(is_evaluation=False, collector_done=False)
    assert site.collected == [info]
    assert site.evaluated == []
    assert site.commander.calls == [("finished", "t")]
    assert not site.coordinator.is_ending
    assert site.coordinator.status().env_steps == 7


def test_evaluated_policy_is_handed_on_and_then_deleted(site: Site) -> None:
    store = site.coordinator.policy_store
    store.publish("t", {"w": np.arange(2.0)}, 5)
    info = site.finish(is_evaluation=True, collector_done=True, policy_id="t")
    ((found, model),) = site.evaluated
    assert (found, model["w"].tolist()) == (info, [0.0, 1.0])
    assert store.newest("t") is None
    assert site.collected == []
    assert not site.coordinator.has_reached_goal

    site.finish(is_evaluation=True, collector_done=True)
    assert site.evaluated[1][1] is None, "the policy was not published"


def test_evaluation_that_was_cut_off_counts_for_nothing(site: Site) -> None:
    site.commander.goal_is_reached = True
    site.coordinator.policy_store.publish("t", {"w": np.zeros(1)}, 5)
    site.finish(is_evaluation=True, collector_done=False, policy_id="t")
    assert site.evaluated == site.collected == []
    assert site.commander.calls == [("failed", "t")]
    assert site.coordinator.policy_store.newest("t") is None
    assert not site.coordinator.is_ending


def test_run_ends_when_its_goal_is_reached(site: Site) -> None:
    site.commander.goal_is_reached = True
    assert not site.coordinator.wait(0.0)
    site.finish(is_evaluation=True, collector_done=True)
    assert site.coordinator.has_reached_goal
    assert site.coordinator.wait(0.0)
    assert not site.coordinator.must_end(site.task(is_evaluation=True))


def test_run_ends_after_as_many_learner_tasks_as_it_may_train(site: Site) -> None:
    ends = []
    for has_trained_out in (True, False, True):
        site.coordinator.deal_with_learner_finish_task(
            site.task("learner"), {}, has_trained_out=has_trained_out
        )
        ends.append(site.coordinator.is_ending)
    assert ends == [False, False, True]
    assert not site.coordinator.has_reached_goal


def test_error_of_a_driver_ends_the_run_with_its_task_and_cause(site: Site) -> None:
    cause = ValueError("out of range")

    def drive(*_: Any) -> None:
        raise cause

    site.coordinator.roles = {
        **site.coordinator.roles,
        "collector": SimpleNamespace(drive=drive),  # type: ignore[dict-item]
    }
    site.coordinator._run(site.task())
    failure = site.coordinator.failure
    assert type(failure) is DingError
    assert str(failure) == "task t: ValueError: out of range"
    assert failure.__cause__ is cause
    assert site.coordinator.must_end(site.task(is_evaluation=True))


def test_orphans_are_swept_twice_in_their_grace_time(site: Site) -> None:
    swept: list[tuple[float, float]] = []

    def sweep(is_live: Any, grace_s: float) -> int:
        swept.append((site.now, grace_s))
        return 0

    site.coordinator.data_store = SimpleNamespace(sweep_orphans=sweep)  # type: ignore[assignment]
    for _ in range(12):
        site.now += 1.0
        site.coordinator._sweep_orphans()
    assert swept == [(105.0, GRACE_S), (110.0, GRACE_S)]


def test_jobs_that_do_not_end_are_named_in_time(site: Site) -> None:
    go_on = threading.Event()
    site.coordinator.clock = time.monotonic
    site.coordinator.start()
    for name in ("quick", "stubborn"):
        wait_s = 0.0 if name == "quick" else 60.0
        site.coordinator._spawn(lambda wait_s=wait_s: go_on.wait(wait_s) and None, name)
    began = time.monotonic()
    assert site.coordinator.close(timeout_s=2.0) == ["stubborn"]
    assert 1.5 < time.monotonic() - began < 30.0
    assert site.coordinator.close() == []
    go_on.set()


def test_commander_is_told_of_more_and_of_less_room_for_collectors(site: Site) -> None:
    site.coordinator.deal_with_increase_collector()
    site.coordinator.deal_with_decrease_collector()
    assert site.commander.calls == [("space", 1), ("space", -1)]


def test_worker_of_an_unknown_role_is_named(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.coordinator._on_join(WorkerInfo("c0", "collector"))
    assert caplog.text == ""
    site.coordinator._on_join(WorkerInfo("x0", "painter"))
    assert "worker x0 joined as 'painter'" in caplog.text
