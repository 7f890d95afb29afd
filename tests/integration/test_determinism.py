"""The same seed gives the same serial run, whichever env manager steps the envs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dingsdk import train
from dingsdk.data import derive_seed
from dingsdk.data.pytree import different_leaves
from dingsdk.testing.stop_and_go import outcome_of

SETS = (
    "policy.learn.learner.train_iterations=60",
    "policy.eval.evaluator.eval_freq=25",
    "env.stop_value=1000",
    "env.n_evaluator_episode=3",
    "env.evaluator_env_num=1",
    "env.collector_env_num=4",
    "policy.collect.n_sample=32",
    "policy.learn.update_per_collect=4",
    "policy.learn.batch_size=32",
)
CASES = {
    "dqn": ("cartpole-dqn", SETS),
    "prioritized": (
        "cartpole-dqn",
        (*SETS, "policy.other.replay_buffer.type=advanced", "policy.priority=true"),
    ),
    "ppo": ("cartpole-ppo", (*SETS[:5], "env.collector_env_num=4", "policy.collect.n_sample=128")),
    "sac": ("pendulum-sac", SETS),
}


def outcome(folder: Path, config: str, sets: tuple[str, ...], name: str, *more: str) -> Any:
    """Train, and return the saved state except envs and the random streams of the process."""
    run = train(config, sets=[*sets, *more, f"exp_name={name}"], output=folder).run_dir
    own = ("envs", "streams")  # these depend on the manager and the process
    return {path: leaf for path, leaf in outcome_of(run).items() if path[0] not in own}


MANAGERS = {
    "base": ["env_manager.type=base", "env_manager.threads=2"],
    "subprocess": ["env_manager.type=subprocess", "env_manager.envs_per_process=2"],
}


@pytest.mark.parametrize(
    ("case", "manager"),
    [
        ("dqn", "base"),
        *(pytest.param(case, "subprocess", marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_env_managers_give_the_same_run_bit_for_bit(
    tmp_path: Path, case: str, manager: str
) -> None:
    config, sets = CASES[case]
    first = outcome(tmp_path, config, sets, "first", "env_manager.type=in_process")
    second = outcome(tmp_path, config, sets, "second", *MANAGERS[manager])
    assert different_leaves(first, second) == []


RATES = {
    "cartpole-dqn": ["learning_rate"],
    "cartpole-ppo": ["learning_rate"],
    "pendulum-sac": ["learning_rate_q", "learning_rate_policy", "learning_rate_alpha"],
}


@pytest.mark.parametrize(
    "config",
    [
        "cartpole-dqn",
        pytest.param("cartpole-ppo", marks=pytest.mark.slow),
        pytest.param("pendulum-sac", marks=pytest.mark.slow),
    ],
)
def test_both_modes_begin_with_the_same_weights(tmp_path: Path, config: str) -> None:
    # Updates this small change only weights that are 0.
    still = [f"policy.learn.{rate}=1e-30" for rate in RATES[config]]
    sets = [*SETS[1:6], "policy.learn.learner.train_iterations=2", "seed=3", *still]
    weights = []
    for mode in ("serial", "parallel"):
        run = train(config, mode=mode, sets=[*sets, f"exp_name={mode}"], output=tmp_path).run_dir
        saved = load_file(run / "ckpt" / "ckpt_best.safetensors")
        weights.append(
            {name: each for name, each in saved.items() if name.startswith("state.model.")}
        )
    serial, parallel = weights
    assert serial.keys() == parallel.keys() != set()
    for name, expected in serial.items():
        torch.testing.assert_close(parallel[name], expected, atol=1e-20, rtol=0.0)


def test_parts_of_a_run_get_seeds_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[str | int, ...]] = set()

    def noted(*path: str | int) -> int:
        asked.add(path)
        return derive_seed(*path)  # type: ignore[arg-type]

    for module in ("dingsdk.pipeline.serial", "dingsdk.envs.make"):
        monkeypatch.setattr(f"{module}.derive_seed", noted)
    sets = ["policy.learn.learner.train_iterations=4", "seed=7", "env_manager.type=in_process"]
    sets += ["env.collector_env_num=2", "env.evaluator_env_num=2", "env.n_evaluator_episode=2"]
    train("cartpole-dqn", sets=sets, output=tmp_path)
    expected = {(7, role, "env", index) for role in ("collector", "evaluator") for index in (0, 1)}
    assert asked == expected | {(7, part) for part in ("policy", "collector", "buffer")}
