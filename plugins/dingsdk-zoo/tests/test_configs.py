"""The shipped configs train in both modes and solve their envs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dingsdk_zoo.plugin import POLICIES

from dingsdk import train
from dingsdk.config import load_config
from dingsdk.errors import ConfigError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker.learner.checkpoint import load_checkpoint

ALL = {path.stem: path for path in Path(__file__).parents[1].glob("dingsdk_zoo/configs/*.yaml")}
OFFLINE = {"cartpole-bc", "pendulum-iql"}
"""Configs that need a data set; test_offline.py trains them."""
CONFIGS = {name: path for name, path in ALL.items() if name not in OFFLINE}
SHORT = (
    *("env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.stop_value=1000000"),
    *("policy.learn.batch_size=8", "system.max_env_steps=1500"),
)


def test_configs_are_of_types_of_the_zoo() -> None:
    types = {load_config(path)["policy"]["type"] for path in ALL.values()}

    assert {"impala", "appo", "td3", "discrete_sac", "bc", "iql"} <= types <= POLICIES.keys()


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("mode", ["serial", pytest.param("parallel", marks=pytest.mark.slow)])
def test_config_trains_and_normalises(name: str, mode: Any, tmp_path: Path) -> None:
    sets = (*SHORT, "policy.normalize.obs=true", "policy.normalize.reward=true")
    transport = "in_memory" if mode == "parallel" else None
    with use_manager(PluginManager()):
        result = train(CONFIGS[name], mode, transport, sets, output=tmp_path)

    assert result.reason == "limit"
    assert result.train_iter > 0
    model = load_checkpoint(result.checkpoints["latest"]).state["model"]
    counts = [float(value) for key, value in model.items() if key.endswith(".count")]
    unroll_len = load_config(CONFIGS[name])["policy"]["collect"].get("unroll_len", 1)
    assert counts == [result.samples.collected * unroll_len] * 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_config_solves_its_env(name: str, tmp_path: Path) -> None:
    with use_manager(PluginManager()):
        limit = "system.max_env_steps=400000"
        result = train(CONFIGS[name], sets=[limit], output=tmp_path)

    assert result.reason == "stop_value"


@pytest.mark.parametrize(
    ("name", "change", "path"),
    [
        ("pendulum-td3", "env.env_id=CartPole-v1", "env.env_id"),
        ("cartpole-discrete-sac", "env.env_id=Pendulum-v1", "env.env_id"),
        ("cartpole-impala", "policy.on_policy=true", "policy.on_policy"),
        ("cartpole-impala", "policy.random_collect_size=9", "policy.random_collect_size"),
        ("cartpole-impala", "system.max_env_steps=100", "policy.collect.unroll_len"),
        (
            "cartpole-impala",
            "policy.other.replay_buffer.type=episode",
            "policy.other.replay_buffer.type",
        ),
        ("cartpole-impala", "policy.traj_len_inf=true", "policy.traj_len_inf"),
    ],
)
def test_what_cannot_work_is_one_line_before_the_start(
    name: str, change: str, path: str, tmp_path: Path
) -> None:
    with use_manager(PluginManager()), pytest.raises(ConfigError) as caught:
        train(CONFIGS[name], sets=[change], output=tmp_path)

    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
