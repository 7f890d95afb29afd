"""A worker reuses its envs from task to task, and rebuilds them after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.pipeline.context import RunContext, RunResult
from dingsdk.pipeline.parallel import parallel_pipeline
from dingsdk.pipeline.train import compile_run
from dingsdk.worker.collector.env_pool import EnvPool

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


ENV = {"env_id": "CountedCartPole-v0", "collector_env_num": 2, "evaluator_env_num": 1}


def first_obs(pool: EnvPool, seed: int, env: dict[str, Any] = ENV) -> Any:
    manager, _ = pool.take("collector", {"type": "in_process"}, env, seed)
    obs = np.stack([manager.ready_obs[index] for index in range(manager.env_num)])
    manager.step(manager.random_action())
    pool.give_back(manager, is_usable=True)
    return obs


def test_reused_envs_play_the_episodes_of_their_new_seed() -> None:
    pool, fresh = EnvPool(), EnvPool()
    first_obs(pool, 1)
    assert np.array_equal(first_obs(pool, 2), first_obs(fresh, 2))
    assert len(CountedCartPole.made) == 2 * 2
    pool.close()
    fresh.close()
    assert len(CountedCartPole.closed) == 2 * 2


def test_envs_are_rebuilt_after_a_config_change_or_a_failure() -> None:
    pool = EnvPool()
    first_obs(pool, 1)
    first_obs(pool, 1, {**ENV, "collector_env_num": 1})
    assert (len(CountedCartPole.made), len(CountedCartPole.closed)) == (3, 2)
    manager, _ = pool.take("collector", {"type": "in_process"}, {**ENV, "collector_env_num": 1}, 1)
    pool.give_back(manager, is_usable=False)
    assert manager.closed
    first_obs(pool, 1)
    assert len(CountedCartPole.made) == 5
    pool.close()


def test_envs_returned_to_a_closed_pool_are_closed() -> None:
    pool = EnvPool()
    manager, _ = pool.take("evaluator", {"type": "in_process"}, ENV, None)
    pool.close()
    assert not manager.closed
    pool.give_back(manager, is_usable=True)
    assert manager.closed
