"""Parallel mode writes the same curves as serial mode, on the same axes."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk import train
from tests.tensorboard_events import curves_of

SETS = (
    "system.max_env_steps=3000",
    "system.collector_num=1",
    "policy.collect.collector.collect_print_freq=10",
    "policy.learn.learner.hook.log_show_after_iter=20",
    "policy.eval.evaluator.eval_freq=40",
    "env.stop_value=1000",
    "env.evaluator_env_num=5",
    "env.n_evaluator_episode=5",
    "env.collector_episode_num=1000",  # one task of the collector lasts for the whole run
)
BUFFER = ("age_mean", "age_min", "age_max")
"""Written at time intervals."""
PARALLEL_ONLY = ("pace", "relative_pace", "policy_lag", "commander_iter", "commander_step")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    folder = tmp_path_factory.mktemp("curves")
    runs = {
        mode: train("cartpole-dqn", mode=mode, sets=[*SETS, f"exp_name={mode}"], output=folder)
        for mode in ("serial", "parallel")
    }
    return {mode: curves_of(result.run_dir) for mode, result in runs.items()}


def test_parallel_mode_writes_every_curve_of_serial_mode(both) -> None:
    assert len(both["serial"]) > 40
    missing = both["serial"].keys() - both["parallel"].keys()
    # Parallel mode drops no samples.
    assert missing == {f"collector_{axis}/total_dropped_sample_count" for axis in ("iter", "step")}
    more = {tag for tag in both["parallel"] if not tag.startswith(PARALLEL_ONLY)}
    named = {tag.rpartition("/")[2] for tag in more - both["serial"].keys()}
    assert named <= {"data_time_avg", *BUFFER}  # a worker waits for data


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_epsilon_falls_with_the_env_steps_within_a_task(both, mode: str) -> None:
    step, eps = max(both[mode]["collector_step/eps"])
    # From 1 to 0.05 over 5,000 env steps; a collector gets it with each payload.
    assert eps == pytest.approx(1 - 0.95 * step / 5_000, abs=0.15)
