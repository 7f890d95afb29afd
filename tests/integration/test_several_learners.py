"""Runs in which several processes train one policy together."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from dingsdk import hookimpl, train
from dingsdk.errors import TaskFailedError, WorkerCrashedError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker.learner.checkpoint import load_checkpoint

from . import short_runs

pytestmark = pytest.mark.slow
SETS = (*short_runs.QUICK, "system.learner_num=2")


def test_serial_run_with_two_learners_trains_to_its_limit(tmp_path: Path) -> None:
    result = train("cartpole-dqn", sets=[*SETS, "system.max_env_steps=400"], output=tmp_path)

    assert result.reason == "limit"
    assert result.train_iter > 20
    assert load_checkpoint(result.checkpoints["latest"]).iteration == result.train_iter


@pytest.mark.parametrize("transport", ["in_memory", "flask_fs"])
def test_parallel_run_with_two_learners_trains_prioritized_to_its_limit(
    tmp_path: Path, transport: str
) -> None:
    sets = [
        *SETS,
        "policy.priority=true",
        "policy.other.replay_buffer.type=advanced",
        "system.max_env_steps=5000",
    ]
    result = train("cartpole-dqn", "parallel", transport, sets=sets, output=tmp_path)

    assert result.reason == "limit"
    assert result.train_iter > 20
    assert load_checkpoint(result.checkpoints["latest"]).iteration == result.train_iter


class KillsARank:
    """Kills the process of another rank once the learner has trained for a while."""

    @hookimpl
    def dingsdk_after_iter(self, iteration: int) -> None:
        if iteration == 20:
            (rank,) = (p for p in multiprocessing.active_children() if "rank" in p.name)
            rank.kill()
            rank.join()


@pytest.mark.parametrize(
    ("mode", "expected"), [("serial", WorkerCrashedError), ("parallel", TaskFailedError)]
)
def test_run_whose_rank_is_lost_ends_by_its_name(
    tmp_path: Path, mode: Any, expected: type[Exception]
) -> None:
    manager = PluginManager()
    manager.register_plugin(KillsARank(), "killer")
    with use_manager(manager), pytest.raises(expected, match="rank 1 of the learner"):
        train("cartpole-dqn", mode, sets=SETS, output=tmp_path)
    assert not [each for each in multiprocessing.active_children() if "rank" in each.name]
