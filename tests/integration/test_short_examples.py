"""Short runs of the shipped examples in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dingsdk import train
from dingsdk.plugins import PluginManager, use_manager

FEW_EPISODES = ("env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.stop_value=1000000")
SHORT = {
    "acrobot-ppo": ("system.max_env_steps=512", "policy.collect.n_sample=256"),
    "cartpole-ppo": ("system.max_env_steps=1024", "policy.collect.n_sample=256"),
    "pendulum-sac": ("system.max_env_steps=160", "policy.learn.batch_size=16"),
}
RECURRENT = ("policy.model.recurrent=lstm", "policy.learn.sequence_len=8")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SHORT)
def test_example_trains(name: str) -> None:
    with use_manager(PluginManager()):
        result = train(name, sets=(*SHORT[name], *FEW_EPISODES))

    assert result.reason == "limit"
    assert result.train_iter > 0
    assert {path.name for path in result.run_dir.glob("ckpt/*")} >= {"ckpt_best.safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_example_trains_in_parallel_mode(name: str) -> None:
    with use_manager(PluginManager()):
        result = train(
            name,
            mode="parallel",
            transport="in_memory",
            sets=(*SHORT[name], *FEW_EPISODES, "system.transport.check_wire=true"),
        )

    assert result.reason == "limit"
    assert result.train_iter > 0


@pytest.mark.parametrize("mode", ["serial", pytest.param("parallel", marks=pytest.mark.slow)])
def test_recurrent_ppo_trains(mode: str) -> None:
    with use_manager(PluginManager()):
        result = train(
            "cartpole-ppo",
            mode=mode,  # type: ignore[arg-type]
            sets=(*SHORT["cartpole-ppo"], *RECURRENT, *FEW_EPISODES),
        )

    assert result.reason == "limit"
    assert result.train_iter > 0
