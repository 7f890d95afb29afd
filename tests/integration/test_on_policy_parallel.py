"""PPO in parallel mode: each sample is trained on once, and none is older than allowed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dingsdk import train
from dingsdk.errors import ConfigError
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, use_manager

SETS = (
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.collect.n_sample=256",
    "policy.learn.batch_size=64",
    "policy.learn.epoch_per_collect=2",
    "system.collector_num=2",
    "system.max_env_steps=2000",
    "env.stop_value=1000",  # the pole may be balanced before the limit
)


def run(output: Path, *sets: str) -> Any:
    with use_manager(PluginManager()):
        return train("cartpole-ppo", "parallel", "in_memory", (*SETS, *sets), 3, output)


@pytest.mark.parametrize(
    ("max_lag", "concurrency"),
    [
        (0, "greenlets"),
        (2, "threads"),
        ("null", "greenlets"),
        pytest.param(0, "threads", marks=pytest.mark.slow),
        pytest.param(2, "greenlets", marks=pytest.mark.slow),
    ],
)
def test_trained_samples_stay_within_the_policy_lag_limit(
    max_lag: int | str, concurrency: str, evicted: list[dict[str, int]], tmp_path: Path
) -> None:
    result = run(
        tmp_path,
        f"policy.other.commander.max_policy_lag={max_lag}",
        f"system.transport.concurrency={concurrency}",
        "system.transport.check_wire=true",
    )

    assert result.reason == "limit"
    assert result.env_steps >= 2000
    # 2 passes over at least 256 samples in minibatches of 64
    assert result.train_iter >= 8 * 5
    assert result.policy_lag is not None
    largest = math.inf if max_lag == "null" else max_lag
    assert 0 <= result.policy_lag["mean"] <= result.policy_lag["largest"] <= largest
    assert evicted[0].keys() == {"trained"}
    assert evicted[0]["trained"] >= 5 * 256
    record = json.loads((result.run_dir / "result.json").read_text())
    assert record["policy_lag"] == result.policy_lag
    (events,) = result.run_dir.glob("log/coordinator_tb_logger/events*")
    assert b"policy_lag/mean" in events.read_bytes()


@pytest.mark.slow
def test_tasks_that_end_after_some_episodes_lose_no_rows(
    evicted: list[dict[str, int]], tmp_path: Path
) -> None:
    result = run(tmp_path, "env.collector_episode_num=2")

    assert result.reason == "limit"
    assert evicted[0].keys() == {"trained"}


@pytest.mark.parametrize(
    ("sets", "path"),
    [
        (["policy.collect.n_sample=null"], "policy.collect.n_sample"),
        (["policy.traj_len_inf=true"], "policy.traj_len_inf"),
        (["policy.collect.added_columns=[episode_return]"], "policy.collect.added_columns"),
        (["policy.other.commander.max_policy_lag=-1"], "policy.other.commander.max_policy_lag"),
    ],
)
def test_settings_that_on_policy_runs_cannot_use_are_refused(sets: list[str], path: str) -> None:
    with use_manager(PluginManager()), pytest.raises(ConfigError) as caught:
        compile_run("cartpole-ppo", mode="parallel", transport="in_memory", sets=sets)
    assert caught.value.facts["path"] == path


def test_policy_lag_limit_of_an_off_policy_run_is_refused() -> None:
    with use_manager(PluginManager()), pytest.raises(ConfigError) as caught:
        compile_run("cartpole-dqn", sets=["policy.other.commander.max_policy_lag=2"])
    assert caught.value.facts["path"] == "policy.other.commander.max_policy_lag"
