"""Parallel runs over ``flask_fs`` with all roles as threads of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import TaskFailedError
from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run
from dingsdk.worker.learner.checkpoint import load_checkpoint

from . import short_runs

QUICK = (*short_runs.QUICK, "system.transport.workers=threads")


def run(tmp_path: Path, *sets: str, **kwargs: Any) -> RunResult:
    cfg = compile_run(
        "cartpole-dqn", mode="parallel", transport="flask_fs", sets=(*QUICK, *sets), seed=3
    )
    return parallel_pipeline(RunContext(cfg=cfg, run_dir=tmp_path / "run", **kwargs))


def test_run_trains_evaluates_and_saves_both_checkpoints(tmp_path: Path) -> None:
    result = run(tmp_path)

    assert result.reason == "limit"
    assert result.train_iter == 200
    assert result.env_steps > 100
    assert result.evaluations[0].train_iter == 0
    assert all(each.episodes == 2 for each in result.evaluations)
    latest = load_checkpoint(result.checkpoints["latest"])
    best = load_checkpoint(result.checkpoints["best"])
    assert latest.iteration == 200
    assert best.state["model"].keys() == latest.state["model"].keys()


def test_learner_that_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(TaskFailedError) as caught:
        run(tmp_path, "policy.learn.learning_rate=1e15")
    assert "NonFiniteError" in caught.value.facts["traceback"]
