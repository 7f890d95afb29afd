"""A worker reuses its envs from task to task, and rebuilds them after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run

from . import short_runs


class CountedCartPole(CartPoleEnv):
    made: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.made.append(id(self))

    def close(self) -> None:
        self.closed.append(id(self))
        super().close()


@pytest.fixture(autouse=True)
def _counted() -> Iterator[None]:
    CountedCartPole.made, CountedCartPole.closed = [], []
    gymnasium.register("CountedCartPole-v0", entry_point=CountedCartPole, max_episode_steps=500)
    yield
    gymnasium.registry.pop("CountedCartPole-v0")


def run(run_dir: Path, *sets: str) -> RunResult:
    sets = (
        *short_runs.QUICK,
        "env.env_id=CountedCartPole-v0",
        "env_manager.type=in_process",
        *sets,
    )
    cfg = compile_run("cartpole-dqn", mode="parallel", transport="in_memory", sets=sets, seed=3)
    CountedCartPole.made.clear()
    CountedCartPole.closed.clear()
    return parallel_pipeline(RunContext(cfg=cfg, run_dir=run_dir))


@pytest.mark.parametrize("kind", ["zergling", "serial"])
def test_worker_builds_its_envs_once_for_many_tasks(tmp_path: Path, kind: str) -> None:
    sets = (f"policy.collect.parallel_collector.type={kind}", "env.collector_episode_num=1")
    result = run(tmp_path, *sets)
    tasks = sum(
        path.read_text().count("finished") for path in tmp_path.glob("log/collector/*_logger.txt")
    )
    assert tasks > 4
    assert len(result.evaluations) >= 2
    # Two collectors, each with four envs for collection and two for evaluation.
    assert 4 <= len(CountedCartPole.made) <= 2 * (4 + 2)
    assert sorted(set(CountedCartPole.closed)) == sorted(set(CountedCartPole.made))
