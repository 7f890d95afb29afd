"""Runs that have used up their env steps have made the same number of updates in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dingsdk import train

SETS = (
    "system.max_env_steps=600",
    "env.stop_value=1000",
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
)
DQN = (
    "policy.nstep=1",
    "policy.collect.n_sample=4",
    "policy.learn.batch_size=16",
    "policy.learn.update_per_collect=3",
)
PPO = (
    "policy.collect.n_sample=64",
    "policy.learn.batch_size=32",
    "policy.learn.epoch_per_collect=2",
)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("config", "sets", "updates", "per_collect"),
    [
        # Training begins with the collect that fills the first batch.
        ("cartpole-dqn", DQN, lambda rows: 3 * (rows - 16) / 4, 3),
        # 2 passes over a collect in 2 minibatches; a collect of parallel mode may be larger.
        ("cartpole-ppo", PPO, lambda rows: 4 * (rows // 64), 4),
    ],
)
def test_updates_follow_from_the_samples_in_both_modes(
    tmp_path: Path,
    config: str,
    sets: tuple[str, ...],
    updates: Callable[[int], float],
    per_collect: int,
    mode: str,
) -> None:
    result = train(config, mode, sets=[*SETS, *sets], seed=1, output=tmp_path)
    assert result.reason == "limit"
    assert result.env_steps >= 600
    assert abs(result.train_iter - updates(result.samples.acknowledged)) <= per_collect


@pytest.mark.parametrize(
    ("mode", "n_sample", "kind"),
    [
        ("serial", "null", "zergling"),
        ("parallel", "null", "zergling"),
        ("parallel", "4", "zergling"),
        ("parallel", "null", "serial"),
    ],
)
def test_updates_follow_from_the_episodes_in_both_modes(
    tmp_path: Path, mode: str, n_sample: str, kind: str
) -> None:
    ended: list[str] = []

    def after_episode(source: str) -> None:
        ended.append(source)

    sets = (
        *(SETS + DQN),
        f"policy.collect.n_sample={n_sample}",
        "policy.collect.n_episode=4",
        "policy.collect.collector={type: episode, get_train_sample: true}",
        f"policy.collect.parallel_collector.type={kind}",
    )
    result = train(
        "cartpole-dqn", mode, sets=sets, seed=1, output=tmp_path, callbacks=[after_episode]
    )
    assert result.reason == "limit"
    assert ended.count("evaluator") == sum(each.episodes for each in result.evaluations)
    episodes = len(ended) - ended.count("evaluator")
    # 3 updates for 4 episodes; parallel mode may have lost the first and the last episodes.
    assert 3 * (episodes // 4 - 2) <= result.train_iter <= 3 * (episodes // 4)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_started_collect_is_finished_and_trained_on(tmp_path: Path, mode: str) -> None:
    sizes = (
        "policy.collect.n_sample=256",
        "policy.learn.batch_size=64",
        "system.max_env_steps=300",
    )
    result = train("cartpole-ppo", mode, sets=[*SETS, *PPO, *sizes], seed=1, output=tmp_path)
    assert result.env_steps >= 512
    assert result.train_iter == 2 * 8  # collects, minibatches of both passes


@pytest.mark.parametrize("collectors", [1, 2, 3])
def test_collectors_end_at_the_limit_of_env_steps(tmp_path: Path, collectors: int) -> None:
    sets = [*SETS, *DQN, f"system.collector_num={collectors}"]
    result = train("cartpole-dqn", "parallel", sets=sets, seed=1, output=tmp_path)
    assert result.reason == "limit"
    assert 600 <= result.env_steps < 600 + collectors * 4  # envs of each
