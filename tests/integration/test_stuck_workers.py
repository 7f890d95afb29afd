"""Workers that hang in an env step, or while they build their envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.policy.threads import torch_threads

from .job_cluster import JobCluster

LEASE_S = 3.0
PATIENCE_S = 40.0
SETS = (
    "env.env_id=StuckCartPole-v0",
    "env_manager.type=in_process",
    "env.collector_env_num=1",
    f"system.coordinator.lease_s={LEASE_S}",
)


class StuckCartPole(CartPoleEnv):
    """CartPole that blocks once at ``stuck_at``, until ``go_on`` is set."""

    stuck_at: ClassVar[str] = ""
    has_stuck: ClassVar[threading.Event]
    go_on: ClassVar[threading.Event]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._get_stuck_at("build")

    def step(self, action: Any) -> Any:
        self._get_stuck_at("step")
        return super().step(action)

    @classmethod
    def _get_stuck_at(cls, place: str) -> None:
        # The main thread builds one too, to read its spaces.
        if cls.stuck_at == place and threading.current_thread() is not threading.main_thread():
            cls.stuck_at = ""
            cls.has_stuck.set()
            cls.go_on.wait(PATIENCE_S)


@pytest.fixture(autouse=True)
def _one_thread_and_a_stuck_env() -> Iterator[None]:
    StuckCartPole.stuck_at = ""
    StuckCartPole.has_stuck, StuckCartPole.go_on = threading.Event(), threading.Event()
    gymnasium.register("StuckCartPole-v0", StuckCartPole, max_episode_steps=500)
    with torch_threads(1):
        yield
    gymnasium.registry.pop("StuckCartPole-v0")


@pytest.mark.slow
def test_collector_whose_work_hangs_is_lost_and_its_task_goes_to_another(tmp_path: Path) -> None:
    cluster = JobCluster(tmp_path, "threads", *SETS, "system.collector.progress_timeout_s=3")
    try:
        cluster.expect(lambda: cluster.train_iter() > 0)
        StuckCartPole.stuck_at = "step"
        assert StuckCartPole.has_stuck.wait(PATIENCE_S)
        everybody = {"learner-0", "collector-0", "collector-1"}
        master = cluster.coordinator.master
        cluster.expect(lambda: len(master.workers) == 2)
        (lost,) = everybody - master.workers.keys()

        def is_handed_on() -> bool:
            return any(
                task.attempt == 2 and task.worker is not None and task.worker.worker_id != lost
                for task in cluster.coordinator.running_tasks()
            )

        cluster.expect(is_handed_on)
    finally:
        StuckCartPole.go_on.set()
        cluster.close()


@pytest.mark.slow
def test_collector_keeps_its_lease_while_it_builds_envs_for_longer(tmp_path: Path) -> None:
    StuckCartPole.stuck_at = "build"
    cluster = JobCluster(tmp_path, "threads", *SETS)
    try:
        assert StuckCartPole.has_stuck.wait(PATIENCE_S)
        until = time.monotonic() + 1.5 * LEASE_S
        cluster.expect(lambda: time.monotonic() > until)
        StuckCartPole.go_on.set()
        cluster.expect(lambda: cluster.train_iter() > 0)
        workers = cluster.coordinator.master.workers.values()
        assert [info.incarnation for info in workers] == [1, 1, 1]
    finally:
        StuckCartPole.go_on.set()
        cluster.close()


def test_collector_that_never_finishes_its_envs_is_lost_at_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StuckCartPole.stuck_at = "build"
    cluster = JobCluster(tmp_path, "threads", *SETS, "system.coordinator.start_timeout_s=2")
    try:
        assert StuckCartPole.has_stuck.wait(PATIENCE_S)
        cluster.expect(lambda: len(cluster.coordinator.master.workers) == 2)
        assert "within 2.0 s, the limit of system.coordinator.start_timeout_s" in caplog.text
    finally:
        StuckCartPole.go_on.set()
        cluster.close()
