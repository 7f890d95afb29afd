"""Parallel runs with buffers that are small, or remove rows in random order."""

from __future__ import annotations

from pathlib import Path

import pytest

from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager

from ..unit.replay_buffer.random_remover import RandomRemover
from . import short_runs

BUFFER = "policy.other.replay_buffer"


def run(tmp_path: Path, *sets: str) -> RunResult:
    manager = PluginManager()
    manager.registry("removers").register("random", RandomRemover)
    with use_manager(manager):
        sets = (*short_runs.QUICK, "system.transport.check_wire=true", *sets)
        cfg = compile_run("cartpole-dqn", mode="parallel", transport="in_memory", sets=sets, seed=3)
        return parallel_pipeline(RunContext(cfg=cfg, run_dir=tmp_path))


SMALL, RANDOM = f"{BUFFER}.replay_buffer_size=64", f"{BUFFER}.remover.type=random"
PRIORITIZED = f"{BUFFER}.type=advanced"


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param((SMALL,), id="naive", marks=pytest.mark.slow),
        pytest.param((SMALL, PRIORITIZED, f"{BUFFER}.max_use=2"), id="advanced"),
        pytest.param((SMALL, RANDOM), id="random", marks=pytest.mark.slow),
        pytest.param((SMALL, RANDOM, PRIORITIZED), id="both", marks=pytest.mark.slow),
    ],
)
def test_run_trains_to_its_limit(tmp_path: Path, sets: tuple[str, ...]) -> None:
    result = run(tmp_path, *sets)
    assert (result.reason, result.train_iter) == ("limit", 200)
