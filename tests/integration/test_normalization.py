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
    """PPO; notes also the observations that it trains on, as some samples are dropped before."""

    trained: ClassVar[set[bytes]] = set()

    def learn(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        self.trained.update(row.tobytes() for row in batch["obs"].numpy())
        return super().learn(batch)


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
    NotedPPO.trained.clear()
    with use_manager(PluginManager()):
        result = train(
            f"cartpole-{name}", mode, transport, sets=sets, output=tmp_path, policy=policy
        )
    noted = {key: np.concatenate([each[key] for each in Noted.steps]) for key in Noted.steps[0]}
    if policy is NotedPPO:
        is_trained = [row.tobytes() in NotedPPO.trained for row in noted["obs"]]
        noted = {key: column[is_trained] for key, column in noted.items()}
    elif mode == "serial":
        # The collector keeps the rest of an episode for its next collect.
        noted = {key: column[: result.samples.collected] for key, column in noted.items()}
    obs, returns = (column.astype(np.float64) for column in noted.values())
    assert steps / 2 < len(obs) <= result.samples.collected

    saved = load_checkpoint(result.checkpoints["latest"]).state["model"]
    of_obs, of_returns = (
        {key.rpartition(".")[2]: saved[key] for key in saved if part in key}
        for part in ("encoder.features", "reward_scale")
    )
    for statistics, rows in ((of_obs, obs), (of_returns, returns[:, None])):
        assert float(statistics["count"]) == len(rows)
        np.testing.assert_allclose(statistics["mean"], rows.mean(0), rtol=1e-9)
        np.testing.assert_allclose(statistics["var"], rows.var(0), rtol=1e-9)
    evaluated = evaluate(result.run_dir, "latest", policy=policy)
    assert evaluated.train_iter == result.train_iter
    # A step gains 1: with the discount the returns stay below 10, and others are not scaled.
    assert 5 < returns.max() < 10
    assert result.last_return is not None
    assert result.last_return >= 8


SHORT = (
    "policy.learn.learner.train_iterations=60",
    "policy.learn.batch_size=16",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.normalize.obs=true",
    "policy.normalize.reward=true",
)
RUNS: dict[str, tuple[str, Any, Any, tuple[str, ...]]] = {
    "sac": ("pendulum-sac", "serial", None, ()),
    "sac in parallel": ("pendulum-sac", "parallel", "in_memory", ()),
    "two learners": ("pendulum-sac", "serial", None, ("system.learner_num=2",)),
    "two learners in parallel": (
        *("pendulum-sac", "parallel", "in_memory"),
        ("system.learner_num=2",),
    ),
    "inference role": (
        *("cartpole-dqn", "parallel", "flask_fs"),
        ("system.roles.inference.num=1", "policy.nstep=1"),
    ),
    "self-play": (
        *("tictactoe-selfplay", "serial", None),
        ("policy.collect.n_sample=32", "env.collector_env_num=4"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_all_networks_of_a_run_have_the_same_statistics(name: str, tmp_path: Path) -> None:
    config, mode, transport, sets = RUNS[name]
    if name == "self-play":
        pytest.importorskip("pettingzoo", reason="the extra multiagent is not installed")
    result = train(config, mode, transport, sets=(*SHORT, *sets), seed=3, output=tmp_path)

    assert result.train_iter >= 60
    state = load_checkpoint(result.checkpoints["latest"]).state
    counts, means = (
        [
            part[key]
            for part in state.values()
            for key in part
            if "features" in key and key.endswith(f".{end}")
        ]
        for end in ("count", "mean")
    )
    assert len(counts) == (3 if "sac" in config else 2)  # of all networks and their targets
    assert all(0 < float(each) == float(counts[0]) for each in counts)
    assert all(np.array_equal(each, means[0]) for each in means)
    assert float(counts[0]) == float(state["model"]["reward_scale.count"])
    assert float(counts[0]) <= result.samples.collected
    if mode == "serial":
        assert float(counts[0]) == result.samples.collected


@pytest.mark.parametrize(("mode", "transport"), MODES)
def test_statistics_of_another_shape_are_refused_with_file_and_key(
    tmp_path: Path, mode: Any, transport: Any
) -> None:
    sets = (*SETS, "policy.nstep=1", "policy.learn.learner.train_iterations=4")
    result = train("cartpole-dqn", "serial", sets=sets, seed=3, output=tmp_path)
    state = load_checkpoint(result.checkpoints["latest"]).state
    key = "encoder.features.mean"
    state["model"][key] = state["model"][key][:3]
    path = save_checkpoint(tmp_path / "wrong", "other", state, iteration=2, envstep=0)
    with pytest.raises(CheckpointError, match=key) as caught:
        evaluate(result.run_dir, str(path))
    assert str(path) in str(caught.value)
    load = f"policy.learn.learner.hook.load_ckpt_before_run={path}"
    with pytest.raises(CheckpointError, match=key) as caught:
        train("cartpole-dqn", mode, transport, sets=(*sets, load), output=tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
