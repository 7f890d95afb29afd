"""The same seed gives the same serial run, whichever env manager steps the envs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dingsdk import train
from dingsdk.data.pytree import different_leaves
from dingsdk.data.seeding import derive_seed
from dingsdk.testing.stop_and_go import outcome_of

from .short_runs import SIXTY

CASES = {
    "dqn": ("cartpole-dqn", SIXTY),
    "prioritized": (
        "cartpole-dqn",
        (*SIXTY, "policy.other.replay_buffer.type=advanced", "policy.priority=true"),
    ),
    "ppo": ("cartpole-ppo", (*SIXTY[:6], "policy.collect.n_sample=128")),
    "sac": ("pendulum-sac", SIXTY),
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


def test_run_folder_lists_every_derived_seed(tmp_path: Path) -> None:
    sets = ["policy.learn.learner.train_iterations=4", "seed=7", "env_manager.type=in_process"]
    sets += ["env.collector_env_num=2", "env.evaluator_env_num=2", "env.n_evaluator_episode=2"]
    run = train("cartpole-dqn", sets=sets, output=tmp_path).run_dir
    seeds = json.loads((run / "seeds.json").read_text())
    assert seeds.pop("seed") == 7
    expected = {
        f"seed/{role}/env/{index}": derive_seed(7, role, "env", index)
        for role in ("collector", "evaluator")
        for index in range(2)
    }
    for part in ("policy", "collector", "buffer"):
        expected[f"seed/{part}"] = derive_seed(7, part)
    assert expected.items() <= seeds.items()
    policy = derive_seed(7, "policy")
    assert seeds["seed/policy/policy/network"] == derive_seed(policy, "policy", "network")
    assert all(name.startswith("seed/") for name in seeds), "a seed outside the tree"
