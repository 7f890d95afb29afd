"""Runs whose learning rate and other numbers are schedules over env steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dingsdk
from dingsdk.testing import StopAndGo

from .short_runs import QUICK
from .test_parallel_resume import ITERATIONS

RATE = "policy.learn.learning_rate={start: 0.01, end: 0.002, env_steps: 400}"
CLIP = "policy.learn.grad_clip_norm={type: exponential, start: 16, end: 1, env_steps: 400}"
LIMITS = ("system.max_env_steps=800", "env.stop_value=1000")
ON_POLICY = (
    "env.collector_env_num=4",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "policy.collect.n_sample=128",
    "policy.learn.batch_size=64",
    "policy.learn.epoch_per_collect=2",
    "policy.learn.clip_ratio={type: cosine, start: 0.4, end: 0.1, env_steps: 400}",
)


def run(tmp_path: Path, config: str, mode: Any, *sets: str) -> list[tuple[int, dict[str, float]]]:
    """Train; return the env steps and the logged numbers of each iteration."""
    found: list[tuple[int, dict[str, float]]] = []

    def after_iter(learner: Any, log_vars: Any) -> None:
        found.append((learner.collector_envstep, dict(log_vars)))

    sets = (*sets, RATE, *LIMITS)
    dingsdk.train(config, mode, sets=sets, output=tmp_path, seed=2, callbacks=[after_iter])
    return found


def linear(env_steps: int) -> float:
    return 0.01 - 0.008 * min(1.0, env_steps / 400)


def is_rate_of(env_steps: int, rate: float) -> bool:
    return rate == pytest.approx(linear(env_steps))


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_off_policy_training_uses_the_numbers_of_the_env_steps(tmp_path: Path, mode: Any) -> None:
    found = run(tmp_path, "cartpole-dqn", mode, *QUICK, CLIP)

    steps = [envstep for envstep, _ in found]
    assert steps == sorted(steps)
    assert len(set(steps)) > 5
    before = 0
    for envstep, log in found:
        # In parallel mode more env steps may have been reported since the update began.
        first = before if mode == "parallel" else envstep
        used = next(n for n in range(first, envstep + 1) if is_rate_of(n, log["cur_lr"]))
        assert log["cur_lr"] == log["scheduled/learning_rate"]
        clip = 16 * (1 / 16) ** min(1.0, used / 400)
        assert log["scheduled/grad_clip_norm"] == pytest.approx(clip)
        before = used


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_on_policy_training_uses_the_numbers_of_the_env_steps(tmp_path: Path, mode: Any) -> None:
    found = run(tmp_path, "cartpole-ppo", mode, *ON_POLICY)

    steps = [envstep for envstep, _ in found]
    assert len(set(steps)) > 3
    assert steps[0] < 400 <= steps[-1]
    for envstep, log in found:
        assert log["scheduled/learning_rate"] == pytest.approx(linear(envstep))
    first, last = found[0][1], found[-1][1]
    assert first["scheduled/clip_ratio"] > 0.2
    assert last["scheduled/clip_ratio"] == 0.1


def test_resumed_run_has_the_rates_of_an_uninterrupted_one(tmp_path: Path) -> None:
    by_steps = ("policy.eval.evaluator.eval_interval_s=null", "policy.eval.evaluator.eval_freq=20")
    sets = (*QUICK, *by_steps, RATE, CLIP, "policy.learn.learner.train_iterations=60")

    StopAndGo("cartpole-dqn", sets).run(tmp_path, after_iterations=[6, 41])


def test_resumed_parallel_run_goes_on_with_the_numbers_of_its_env_steps(tmp_path: Path) -> None:
    journal = ("exp_name=run", "system.journal.enabled=true")
    before = run(tmp_path, "cartpole-dqn", "parallel", *QUICK, *journal, f"{ITERATIONS}=30")
    after: list[tuple[int, float]] = []

    def after_iter(learner: Any, log_vars: Any) -> None:
        after.append((learner.collector_envstep, log_vars["scheduled/learning_rate"]))

    dingsdk.resume(tmp_path / "run", sets=[f"{ITERATIONS}=50"], callbacks=[after_iter])

    assert (len(before), len(after)) == (30, 20)
    assert 0 < before[-1][0] <= after[0][0] < after[-1][0]
    for envstep, rate in after:
        assert rate == pytest.approx(linear(envstep))
