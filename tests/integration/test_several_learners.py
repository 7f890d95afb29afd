"""Runs in which several processes train one policy together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dingsdk import train
from dingsdk.worker.learner.checkpoint import load_checkpoint

from . import short_runs

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
