"""BC and IQL: losses against numbers computed by hand, learning from recorded data."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from dingsdk_zoo.bc import BCPolicy
from dingsdk_zoo.iql import IQLPolicy, expectile_loss
from numpy.typing import NDArray

from dingsdk import train
from dingsdk.data import Dataset, SampleBatch
from dingsdk.errors import ConfigError
from dingsdk.pipeline.compile import compile_config
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker import write_dataset
from dingsdk.worker.learner.checkpoint import load_checkpoint

SCRIPT = Path(__file__).parents[1] / "examples" / "offline_cartpole.py"
CONFIGS = Path(__file__).parents[1] / "dingsdk_zoo" / "configs"
MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}
CLASSES: Mapping[str, Any] = {"bc": BCPolicy, "iql": IQLPolicy}


def make(kind: str, **learn: Any) -> Any:
    return CLASSES[kind]({"model": MODEL, "learn": learn}, seed=0)


def bandit(rows: int = 100) -> SampleBatch:
    """Return episodes of one step: four of five take action 0, and action 1 is rewarded."""
    action = (np.arange(rows) % 5 == 4).astype(np.int64)
    obs = np.ones((rows, 4), np.float32)
    return SampleBatch(
        {
            "obs": obs,
            "next_obs": obs,
            "action": action,
            "reward": action.astype(np.float32),
            "discount": np.zeros(rows, np.float32),
            "done": np.ones(rows, np.bool_),
        }
    )


def test_expectile_loss_weights_errors_by_their_sign() -> None:
    found = expectile_loss(torch.tensor([2.0, -1.0]), 0.7)

    assert float(found) == pytest.approx((0.7 * 4 + 0.3 * 1) / 2)


@pytest.mark.parametrize(("beta", "weight"), [(0.5, math.e), (3.0, 100.0)])
def test_update_of_iql_equals_the_numbers_computed_by_hand(beta: float, weight: float) -> None:
    policy = make("iql", beta=beta, learning_rate=1e-9)
    state = policy.state()
    for part in ("model", "critic", "target_critic", "value"):
        for parameter in state[part].parameters():
            parameter.data.zero_()
    for part, biases in {"critic": (3, 5), "target_critic": (3, 5), "value": (1,)}.items():
        for head, bias in zip(state[part].heads, biases, strict=True):
            head.layers[-1].bias.data.fill_(bias)
    batch = bandit(1).with_columns(
        reward=np.array([1.0], np.float32), discount=np.array([0.5], np.float32)
    )

    log = policy.learn_mode.forward(batch)

    assert log["value_loss"] == pytest.approx(0.7 * (3 - 1) ** 2)
    assert log["critic_loss"] == pytest.approx((3 - 1.5) ** 2 + (5 - 1.5) ** 2)
    assert log["actor_loss"] == pytest.approx(weight * math.log(2))
    assert (log["q_value"], log["advantage"]) == pytest.approx((3.0, 2.0))


def test_target_critic_follows_the_critic() -> None:
    policy = make("iql", target_theta=0.25)
    state = policy.state()
    before = state["target_critic"].heads[0].layers[-1].bias.detach().clone()

    policy.learn_mode.forward(bandit())

    critic, target = (state[name].heads[0].layers[-1].bias for name in ("critic", "target_critic"))
    torch.testing.assert_close(target.detach(), before.lerp(critic.detach(), 0.25))


@pytest.mark.parametrize(("kind", "action"), [("bc", 0), ("iql", 1)])
def test_bc_clones_what_is_frequent_and_iql_what_is_good(kind: str, action: int) -> None:
    own = {"beta": 10.0} if kind == "iql" else {}
    policy = make(kind, learning_rate=1e-2, **own)
    for _ in range(200):
        policy.learn_mode.forward(bandit())

    obs = np.ones((1, 4), np.float32)
    assert policy.eval_mode.forward_batch(obs, [0])["action"].tolist() == [action]


def test_loss_of_bc_is_the_mean_negative_log_likelihood() -> None:
    policy = make("bc")
    for parameter in policy.state()["model"].parameters():
        parameter.data.zero_()

    log = policy.learn_mode.forward(bandit())

    assert (log["total_loss"], log["entropy"]) == pytest.approx((math.log(2), math.log(2)))


@pytest.mark.parametrize("kind", CLASSES)
def test_run_that_collects_its_own_data_is_refused(kind: str) -> None:
    cfg = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind, "collect": {"n_sample": 64}}}

    with pytest.raises(ConfigError, match=r"needs policy\.collect\.collector\.type=dataset"):
        compile_config(cfg)


def record(
    env_id: str, controller: Callable[[Any], Any], shares: Sequence[float], path: Path
) -> NDArray[np.float64]:
    """Write one episode for each share of random actions; return the returns of the episodes."""
    env, rng = gym.make(env_id), np.random.default_rng(0)
    env.action_space.seed(0)
    rows = []
    for episode, share in enumerate(shares):
        obs, _ = env.reset(seed=episode)
        is_done = False
        while not is_done:
            action = env.action_space.sample() if rng.random() < share else controller(obs)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, next_obs, terminated, truncated))
            obs, is_done = next_obs, terminated or truncated
    env.close()
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    columns = map(np.array, zip(*rows, strict=True))
    dataset = Dataset(dict(zip(names, columns, strict=True)))
    write_dataset(dataset, path)
    return dataset.returns()


def balance(obs: Any) -> int:
    return int(obs[2] + obs[3] > 0)


def swing_up(obs: Any) -> Any:
    """Pump energy into the pendulum, and hold it near the top."""
    cos, sin, speed = map(float, obs)
    torque = -(10 * np.arctan2(sin, cos) + 2 * speed) if cos > 0.8 else 2 * np.sign(speed or 1)
    return np.clip([torque], -2, 2).astype(np.float32)


TASKS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "cartpole-bc": ("CartPole-v1", balance),
    "pendulum-iql": ("Pendulum-v1", swing_up),
}


def run(name: str, path: Path, output: Path, *sets: str, mode: Any = "serial") -> Any:
    given = f"policy.collect.collector.path={path}"
    with use_manager(PluginManager()):
        return train(CONFIGS / f"{name}.yaml", mode, sets=[given, *sets], output=output)


@pytest.mark.parametrize("mode", ["serial", pytest.param("parallel", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TASKS)
def test_config_trains_on_a_data_set(name: str, mode: str, tmp_path: Path) -> None:
    record(*TASKS[name], [0.5, 0.5, 1, 1, 1, 1], tmp_path / "data.npz")
    few = (
        "policy.learn.learner.train_iterations=4",
        "policy.learn.batch_size=64",
        "policy.normalize.obs=true",
    )

    found = run(
        name,
        tmp_path / "data.npz",
        tmp_path,
        *few,
        "env.evaluator_env_num=1",
        "env.n_evaluator_episode=1",
        mode=mode,
    )

    assert (found.reason, found.train_iter, found.env_steps) == ("limit", 4, 0)
    assert {0, 4} <= {each.train_iter for each in found.evaluations}
    saved = load_checkpoint(found.checkpoints["latest"]).state
    counts = {float(part[key]) for part in saved.values() for key in part if key.endswith(".count")}
    assert counts == {found.samples.collected}


@pytest.mark.slow
def test_bc_plays_as_well_as_the_rule_that_it_saw_with_random_actions(tmp_path: Path) -> None:
    rule = record("CartPole-v1", balance, [0.0] * 20, tmp_path / "rule.npz").mean()
    record("CartPole-v1", balance, np.linspace(0, 0.5, 50).tolist(), tmp_path / "mixed.npz")

    found = run("cartpole-bc", tmp_path / "mixed.npz", tmp_path)

    assert found.last_return >= 0.95 * rule


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_iql_is_better_than_the_data_on_average(tmp_path: Path) -> None:
    shares = np.linspace(0, 1, 100).tolist()
    returns = record(*TASKS["pendulum-iql"], shares, tmp_path / "mixed.npz")

    sets = ("policy.learn.learner.train_iterations=3000", "policy.eval.evaluator.eval_freq=3000")
    found = run("pendulum-iql", tmp_path / "mixed.npz", tmp_path, *sets)

    assert found.last_return >= returns.mean() + 0.1 * (returns.max() - returns.mean())


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_example_solves_cartpole_from_a_saved_buffer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(SCRIPT))["main"]

    main(kind, "rows", iterations=1)
    assert main(kind, "rows") >= 475
