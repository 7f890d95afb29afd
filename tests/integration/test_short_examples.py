"""Short runs of the shipped examples in both modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dingsdk import train
from dingsdk.plugins import PluginManager, use_manager
from tests.extras import needs

FEW_EPISODES = ("env.evaluator_env_num=1", "env.n_evaluator_episode=1", "env.stop_value=1000000")
SHORT = {
    "acrobot-ppo": ("system.max_env_steps=512", "policy.collect.n_sample=256"),
    "cartpole-ppo": ("system.max_env_steps=1024", "policy.collect.n_sample=256"),
    "pendulum-sac": ("system.max_env_steps=160", "policy.learn.batch_size=16"),
    "lunarlander-dqn": ("policy.learn.learner.train_iterations=64",),
    "pong-dqn": (
        "env.collector_env_num=2",
        "env_manager={type: in_process}",
        "policy.learn.learner.train_iterations=16",
        "policy.other.replay_buffer.replay_buffer_size=500",
        "policy.other.replay_buffer.limiter.min_size=100",
    ),
}
RECURRENT = ("policy.model.recurrent=lstm", "policy.learn.sequence_len=8")
WIRE = ("system.transport.check_wire=true",)
PPO, SAC = "cartpole-ppo", "pendulum-sac"


@pytest.mark.parametrize(
    ("name", "mode", "more"),
    [
        *((name, "serial", ()) for name in ("acrobot-ppo", PPO, SAC)),
        *(
            pytest.param(name, "parallel", WIRE, marks=pytest.mark.slow)
            for name in ("acrobot-ppo", PPO, SAC)
        ),
        (PPO, "serial", RECURRENT),
        pytest.param(PPO, "parallel", RECURRENT, marks=pytest.mark.slow),
        pytest.param("lunarlander-dqn", "serial", (), marks=needs("box2d")),
        pytest.param("pong-dqn", "serial", (), marks=[needs("atari"), pytest.mark.slow]),
    ],
)
def test_example_trains(name: str, mode: Any, more: tuple[str, ...], tmp_path: Path) -> None:
    with use_manager(PluginManager()):
        sets = (*SHORT[name], *FEW_EPISODES, *more)
        result = train(name, mode, sets=sets, output=tmp_path)

    assert result.reason == "limit"
    assert result.train_iter > 0
    assert (result.run_dir / "ckpt" / "ckpt_best.safetensors").is_file()
    assert name != "pong-dqn" or result.evaluations[-1].mean < 0
