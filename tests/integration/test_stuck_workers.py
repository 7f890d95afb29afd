"""Workers that hang while they build their envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from .clusters import JobCluster

LEASE_S = 3.0
PATIENCE_S = 40.0
SETS = (
    f"env.env_id={__name__}:StuckCartPole",
    "env_manager.type=in_process",
    "env.collector_env_num=1",
    f"system.coordinator.lease_s={LEASE_S}",
)


class StuckCartPole(CartPoleEnv):
    """CartPole whose constructor blocks once in a worker if ``is_armed``, until ``go_on``."""

    is_armed: ClassVar[bool] = False
    has_stuck: ClassVar[threading.Event]
    go_on: ClassVar[threading.Event]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # The main thread builds one too, to read its spaces.
        is_worker = threading.current_thread() is not threading.main_thread()
        if StuckCartPole.is_armed and is_worker:
            StuckCartPole.is_armed = False
            self.has_stuck.set()
            self.go_on.wait(PATIENCE_S)


@pytest.fixture(autouse=True)
def _stuck_env() -> None:
    StuckCartPole.is_armed = False
    StuckCartPole.has_stuck, StuckCartPole.go_on = threading.Event(), threading.Event()


@contextmanager
def released() -> Iterator[None]:
    """Let the stuck env go on at the end."""
    try:
        yield
    finally:
        StuckCartPole.go_on.set()


@pytest.mark.slow
def test_collector_keeps_its_lease_while_it_builds_envs_for_longer(tmp_path: Path) -> None:
    StuckCartPole.is_armed = True
    with JobCluster(tmp_path, "threads", *SETS) as cluster, released():
        assert StuckCartPole.has_stuck.wait(PATIENCE_S)
        until = time.monotonic() + 1.5 * LEASE_S
        cluster.expect(lambda: time.monotonic() > until)
        StuckCartPole.go_on.set()
        cluster.expect(lambda: cluster.train_iter() > 0)
        workers = cluster.coordinator.master.workers.values()
        assert [info.incarnation for info in workers] == [1, 1, 1]


def test_collector_that_never_finishes_its_envs_is_lost_at_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StuckCartPole.is_armed = True
    limit = "system.coordinator.start_timeout_s=2"
    with JobCluster(tmp_path, "threads", *SETS, limit) as cluster, released():
        assert StuckCartPole.has_stuck.wait(PATIENCE_S)
        cluster.expect(lambda: len(cluster.coordinator.master.workers) == 2)
        assert "within 2.0 s, the limit of system.coordinator.start_timeout_s" in caplog.text
