"""A run learns observation statistics and saves them; an evaluation loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk import evaluate, train
from dingsdk.worker.learner.checkpoint import load_checkpoint

from . import short_runs

SETS = (*short_runs.QUICK, "policy.nstep=1", "policy.model.normalize_obs=true")


@pytest.mark.parametrize(
    ("config", "mode", "transport"),
    [
        ("cartpole-dqn", "serial", None),
        pytest.param("cartpole-dqn", "parallel", "in_memory", marks=pytest.mark.slow),
        ("cartpole-ppo", "parallel", "in_memory"),
        pytest.param("cartpole-dqn", "parallel", "flask_fs", marks=pytest.mark.slow),
    ],
)
def test_checkpoints_contain_the_observation_statistics(
    tmp_path: Path, config: str, mode: Any, transport: str | None
) -> None:
    result = train(config, mode, transport, sets=SETS, seed=3, output=tmp_path)
    saved = load_checkpoint(result.checkpoints["latest"]).state["model"]
    (count,) = (float(value) for key, value in saved.items() if key.endswith("count"))
    (var,) = (value for key, value in saved.items() if key.endswith("var"))
    assert count >= 200
    assert 0 < float(var.min()) < float(var.max()) != 1
    assert evaluate(result.run_dir, "latest").train_iter == result.train_iter
