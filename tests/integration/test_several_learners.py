"""Runs in which several processes train one policy together."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dingsdk import hookimpl, train
from dingsdk.errors import WorkerCrashedError
from dingsdk.testing import StopAndGo
from dingsdk.worker.learner import aggregator
from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.own_plugins import using

from . import short_runs
from .clusters import LEASE_S, ProcessCluster, is_running

pytestmark = pytest.mark.slow
SETS = (*short_runs.QUICK, "system.learner_num=2")


def test_serial_run_with_two_learners_that_draw_noise_resumes_bit_for_bit(tmp_path: Path) -> None:
    sets = [
        "system.learner_num=2",
        "policy.learn.batch_size=8",
        "policy.learn.learner.train_iterations=60",
        "env.evaluator_env_num=2",
        "env.n_evaluator_episode=2",
    ]
    StopAndGo("pendulum-sac", sets).run(tmp_path, after_iterations=[20])


class KillsARank:
    """Kills the process of another rank once the learner has trained for a while."""

    def __init__(self) -> None:
        self.iterations: list[int] = []

    @hookimpl
    def dingsdk_after_iter(self, iteration: int) -> None:
        self.iterations.append(iteration)
        if self.iterations.count(20) and len(self.iterations) == 21:
            (rank,) = (p for p in multiprocessing.active_children() if "rank" in p.name)
            rank.kill()
            rank.join()


@pytest.fixture
def killer() -> Iterator[KillsARank]:
    made = KillsARank()
    with using(made):
        yield made
    assert not [each for each in multiprocessing.active_children() if "rank" in each.name]


def test_serial_run_that_loses_a_rank_ends_and_names_it(tmp_path: Path, killer: KillsARank) -> None:
    with pytest.raises(WorkerCrashedError, match="rank 1 of the learner"):
        train("cartpole-dqn", sets=SETS, output=tmp_path)


def test_parallel_run_that_loses_a_rank_continues_from_the_checkpoint(
    tmp_path: Path, killer: KillsARank, caplog: pytest.LogCaptureFixture
) -> None:
    result = train("cartpole-dqn", "parallel", sets=SETS, output=tmp_path)
    assert (result.reason, result.train_iter) == ("limit", 200)
    assert killer.iterations == list(range(200))
    assert "rank 1 of the learner died: killed by SIGKILL" in caplog.text


def test_parallel_run_that_loses_a_rank_at_its_start_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect, killed = aggregator.process_group, []

    def connect_late(*args: Any) -> Any:
        if not killed:
            (rank,) = (p for p in multiprocessing.active_children() if "rank" in p.name)
            rank.kill()
            rank.join()
            killed.append(rank)
        return connect(*args)

    monkeypatch.setattr(aggregator, "process_group", connect_late)
    sets = (*SETS, "system.coordinator.lease_s=3")
    result = train("cartpole-dqn", "parallel", sets=sets, output=tmp_path)
    open_files = [file.path for file in psutil.Process().open_files()]

    assert (result.reason, result.train_iter) == ("limit", 200)
    assert [path for path in open_files if path.startswith(str(tmp_path))] == []
    assert "rank 1 of the learner died: killed by SIGKILL" in caplog.text


def _ranks(pid: int) -> list[int]:
    """Return the processes spawned by a process, without its resource tracker."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, children.read_text().split())
    return [each for each in found if "spawn_main" in Path(f"/proc/{each}/cmdline").read_text()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_learner_with_a_lost_rank_restarts_its_ranks_from_the_checkpoint(
    tmp_path: Path, how: signal.Signals
) -> None:
    with ProcessCluster(tmp_path, ["system.learner_num=2"]) as cluster:
        cluster.expect_training()
        learner, incarnation = cluster.pid("learner-0"), cluster.incarnation("learner-0")
        (rank,) = _ranks(learner)
        trained = cluster.train_iter()
        os.kill(rank, how)
        cluster.expect(lambda: cluster.incarnation("learner-0") > incarnation, 3 * LEASE_S + 10)
        cluster.expect(lambda: cluster.train_iter() > trained + 20)
        assert load_checkpoint(tmp_path / "ckpt").iteration >= trained
        assert cluster.pid("learner-0") == learner
        assert not is_running(rank)
        cluster.coordinator.validate_state()
