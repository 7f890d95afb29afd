"""A collector with slow envs is named as a straggler, keeps its task and delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk import hookimpl
from dingsdk.errors import DingError
from dingsdk.worker import Coordinator
from dingsdk.worker.coordinator import TaskState
from tests.own_plugins import using

from .clusters import JobCluster

SLOW_S = 0.02
SETS = (
    f"env.env_id={__name__}:OneSlowCartPole",
    "env_manager.type=in_process",
    "env.collector_env_num=2",
    "policy.collect.n_sample=8",
    "system.collector_num=3",
    "system.coordinator.straggler_window_s=2",
    "policy.other.replay_buffer.limiter.type=samples_per_insert",
    "policy.other.replay_buffer.limiter.samples_per_insert=0.05",
    "policy.other.replay_buffer.limiter.min_size=16",
    "policy.other.replay_buffer.limiter.error_buffer=1000000",  # collectors never wait
)


class OneSlowCartPole(CartPoleEnv):
    """CartPole that is slow in the thread with the name ``slow_thread``."""

    slow_thread = ""

    def step(self, action: Any) -> Any:
        if threading.current_thread().name == self.slow_thread:
            time.sleep(SLOW_S)
        return super().step(action)


class Witness:
    """A plugin that records the changes of pace."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    @hookimpl
    def dingsdk_pace_changed(
        self, worker_id: str, relative_pace: float, is_straggler: bool
    ) -> None:
        self.seen.append((worker_id, is_straggler))
        assert (relative_pace < 0.4) is is_straggler


class CountingCoordinator(Coordinator):
    """Counts the tasks that ended with an error."""

    lost = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        end = self.state.end

        def count(state: TaskState, error: DingError | None) -> tuple[DingError | None, bool]:
            self.lost += error is not None
            return end(state, error)

        self.state.end = count  # type: ignore[method-assign]


@pytest.fixture
def witness() -> Iterator[Witness]:
    made = Witness()
    with using(made):
        yield made


@pytest.mark.parametrize(
    "concurrency",
    [
        pytest.param("threads", id="in_memory"),
        pytest.param(None, id="flask_fs", marks=pytest.mark.slow),
    ],
)
def test_slow_collector_is_named_once_and_loses_nothing(
    tmp_path: Path,
    concurrency: str | None,
    witness: Witness,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OneSlowCartPole, "slow_thread", "collector-1-collector")
    with JobCluster(tmp_path, concurrency, *SETS, coordinator_cls=CountingCoordinator) as cluster:
        coordinator = cluster.coordinator
        assert isinstance(coordinator, CountingCoordinator)
        cluster.expect(lambda: len(coordinator.master.workers) == 4)
        before = coordinator.master.workers
        cluster.expect(lambda: ("collector-1", True) in witness.seen)
        paces = coordinator.status().paces
        assert coordinator.master.workers == before
        coordinator.validate_state()

    assert [name for name, pace in paces.items() if pace.is_straggler] == ["collector-1"]
    slow = paces["collector-1"]
    assert slow.relative is not None
    assert slow.relative < 1 / 3
    assert 0 < slow.per_s < 2 / SLOW_S
    for name in ("collector-0", "collector-2"):
        assert paces[name].per_s > slow.per_s
    assert coordinator.lost == 0
    assert witness.seen == [("collector-1", True)]
    assert caplog.text.count("collector-1 is a straggler") == 1
