"""Runs scale by statistics of all collected steps and save them; evaluations load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk import evaluate, train
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.errors import CheckpointError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import BasePolicy, DQNPolicy, PPOPolicy, R2D2Policy
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint

from . import short_runs

SETS = (*short_runs.QUICK, "policy.normalize.obs=true", "policy.normalize.reward=true")
MODES: tuple[tuple[Any, Any], ...] = (("serial", None), ("parallel", "in_memory"))


class Noted(BasePolicy):
    """Notes the steps that collectors make samples of."""

    steps: ClassVar[list[dict[str, Any]]] = []

    def samples(self, columns: dict[str, Any], ends: Any) -> Any:
        Noted.steps.append({name: columns[name].copy() for name in ("obs", DISCOUNTED_RETURN)})
        return super().samples(columns, ends)


class NotedDQN(Noted, DQNPolicy):
    """DQN."""


class NotedPPO(Noted, PPOPolicy):
    """PPO."""


class NotedR2D2(Noted, R2D2Policy):
    """R2D2."""


@pytest.mark.parametrize(("mode", "transport"), MODES)
@pytest.mark.parametrize("policy", [NotedDQN, NotedPPO, NotedR2D2])
def test_statistics_are_those_of_all_collected_steps(
    tmp_path: Path, policy: Any, mode: Any, transport: Any
) -> None:
    name = policy.__name__.removeprefix("Noted").lower()
    steps = 256  # a multiple of what a training of PPO needs
    sets = (
        *SETS,
        "policy.nstep=1",
        "policy.discount_factor=0.9",
        "policy.collect.n_sample=64",
        "policy.learn.learner.train_iterations=100000",
        f"system.max_env_steps={steps}",
    )
    Noted.steps = []
    with use_manager(PluginManager()):
        result = train(
            f"cartpole-{name}", mode, transport, sets=sets, output=tmp_path, policy=policy
        )
    obs, returns = (
        np.concatenate([each[key] for each in Noted.steps]).astype(np.float64)
        for key in Noted.steps[0]
    )
    saved = load_checkpoint(result.checkpoints["latest"]).state["model"]
    of_obs, of_returns = (
        {key.rpartition(".")[2]: saved[key] for key in saved if part in key}
        for part in ("encoder.features", "reward_scale")
    )
    count = result.samples.collected
    # A collector keeps what is left of an episode for its next collect.
    assert steps / 2 < count <= len(obs)
    assert mode == "serial" or count == len(obs)
    for statistics, values in ((of_obs, obs), (of_returns, returns)):
        assert float(statistics["count"]) == count
        rows = values[:count].reshape(count, -1)
        np.testing.assert_allclose(statistics["mean"], rows.mean(0), rtol=1e-9)
        np.testing.assert_allclose(statistics["var"], rows.var(0), rtol=1e-9)
    # A step gains 1: with the discount the returns stay below 10, and others are not scaled.
    assert 5 < returns.max() < 10
    assert result.last_return is not None
    assert result.last_return >= 8


@pytest.mark.parametrize(
    ("config", "mode", "transport"),
    [
        ("cartpole-ppo", "parallel", "in_memory"),
        pytest.param("cartpole-dqn", "parallel", "flask_fs", marks=pytest.mark.slow),
    ],
)
def test_evaluations_use_the_statistics_of_a_checkpoint(
    tmp_path: Path, config: str, mode: Any, transport: str | None
) -> None:
    sets = (*SETS, "policy.nstep=1")
    result = train(config, mode, transport, sets=sets, seed=3, output=tmp_path)
    latest = result.checkpoints["latest"]
    state = load_checkpoint(latest).state["model"]
    (var,) = (value for key, value in state.items() if key.endswith("features.var"))
    assert 0 < float(var.min()) < float(var.max()) != 1
    assert evaluate(result.run_dir, "latest").train_iter == result.train_iter


def test_statistics_of_another_shape_are_refused_with_file_and_key(tmp_path: Path) -> None:
    sets = (*SETS, "policy.nstep=1", "policy.learn.learner.train_iterations=4")
    result = train("cartpole-dqn", "serial", sets=sets, seed=3, output=tmp_path)
    state = load_checkpoint(result.checkpoints["latest"]).state
    key = "encoder.features.mean"
    state["model"][key] = state["model"][key][:3]
    path = save_checkpoint(tmp_path / "wrong", "other", state, iteration=4, envstep=0)
    with pytest.raises(CheckpointError, match=key) as caught:
        evaluate(result.run_dir, str(path))
    assert str(path) in str(caught.value)
    load = f"policy.learn.learner.hook.load_ckpt_before_run={path}"
    with pytest.raises(CheckpointError, match=key) as caught:
        train("cartpole-dqn", "serial", sets=(*sets, load), output=tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
