"""``load_policy`` and ``predict``: what acts, in which shapes, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch

import dingsdk
from dingsdk.config import load_config, save_config
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    SchemaMismatchError,
    UnknownPluginError,
)
from dingsdk.pipeline.predict import SavedPolicy, load_policy
from dingsdk.pipeline.train import compile_run
from dingsdk.policy import create_policy
from dingsdk.worker.learner.checkpoint import save_checkpoint

OBS = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


def save_run(folder: Path, *sets: str, seed: int = 0) -> Path:
    """Leave what a run of CartPole leaves: an untrained policy as the best, another as newest."""
    cfg = compile_run("cartpole-dqn", sets=[*sets, "policy.other.eps.decay=1000"])
    save_config(cfg, folder / "config.yaml")
    for stem, iteration in (("ckpt_best", 7), ("iteration_9", 9)):
        policy = create_policy(cfg.policy, enable_field=["learn"], seed=seed + iteration)
        state = policy.learn_mode.state_dict()
        is_latest = stem != "ckpt_best"
        path = folder / "ckpt"
        save_checkpoint(path, stem, state, iteration=iteration, envstep=500, is_latest=is_latest)
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def policy(run_dir: Path) -> SavedPolicy:
    return load_policy(run_dir)


def greedy(run_dir: Path, obs: Any, stem: str = "ckpt_best") -> list[int]:
    """The best actions, from the weights in the file alone."""
    weights = safetensors.torch.load_file(run_dir / "ckpt" / f"{stem}.safetensors")
    hidden = torch.as_tensor(obs)
    for layer in ("encoder.0", "encoder.1"):
        weight, bias = (weights[f"state.model.{layer}.{name}"] for name in ("weight", "bias"))
        hidden = torch.relu(hidden @ weight.T + bias)
    values = hidden @ weights["state.model.head.weight"].T + weights["state.model.head.bias"]
    return values.argmax(-1).tolist()


def test_best_checkpoint_acts_as_its_weights_say(run_dir: Path, policy: SavedPolicy) -> None:
    batch = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

    actions, state = policy.predict(batch)

    assert actions.tolist() == greedy(run_dir, batch)
    assert len(set(actions.tolist())) == 2
    assert (state, policy.train_iter, policy.checkpoint.name) == (None, 7, "ckpt_best.safetensors")


def test_latest_checkpoint_and_a_file_can_be_named(run_dir: Path) -> None:
    batch = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    expected = greedy(run_dir, batch, "iteration_9")
    path = run_dir / "ckpt" / "iteration_9.safetensors"

    for found in (
        load_policy(run_dir, "latest"),
        load_policy(run_dir, str(path)),
        load_policy(path),
    ):
        assert found.predict(batch)[0].tolist() == expected
        assert found.train_iter == 9


def test_checkpoint_beside_its_config_is_enough(run_dir: Path, tmp_path: Path) -> None:
    shutil.copy(run_dir / "config.yaml", tmp_path)
    shutil.copy(run_dir / "ckpt" / "ckpt_best.safetensors", tmp_path / "cartpole.safetensors")
    assert load_policy(tmp_path / "cartpole.safetensors").train_iter == 7


def test_single_action_is_what_the_env_takes(policy: SavedPolicy) -> None:
    action, _ = policy.predict(OBS)
    assert np.shape(action) == ()
    assert action == policy.predict(OBS[None])[0][0]
    env = policy.make_env()
    env.reset(seed=0)
    assert env.step(action)[1] == 1.0
    env.close()


@pytest.mark.parametrize("obs", [OBS.tolist(), torch.from_numpy(OBS), OBS.astype(np.float64)])
def test_lists_tensors_and_wider_floats_are_taken(policy: SavedPolicy, obs: Any) -> None:
    assert policy.predict(obs)[0] == policy.predict(OBS)[0]


def test_spaces_are_those_of_the_env_which_is_not_made(
    run_dir: Path, tmp_path: Path, policy: SavedPolicy
) -> None:
    config = load_config(run_dir / "config.yaml")
    config["env"]["env_id"] = "absent_package:AbsentEnv"
    shutil.copytree(run_dir, tmp_path / "run")
    save_config(config, tmp_path / "run" / "config.yaml")

    found = load_policy(tmp_path / "run")

    env = gym.make("CartPole-v1")
    assert found.observation_space == policy.observation_space == env.observation_space
    assert found.action_space == policy.action_space == env.action_space


def test_spaces_are_read_from_the_env_where_the_config_lacks_them(
    run_dir: Path, tmp_path: Path
) -> None:
    config = load_config(run_dir / "config.yaml")
    del config["env"]["observation_space"]
    shutil.copytree(run_dir, tmp_path / "run")
    save_config(config, tmp_path / "run" / "config.yaml")
    assert load_policy(tmp_path / "run").observation_space.shape == (4,)


def test_exploration_is_that_of_the_checkpoint(policy: SavedPolicy) -> None:
    batch = np.repeat(OBS[None], 4000, 0)
    best, _ = policy.predict(batch)
    assert len(set(best.tolist())) == 1

    explored, _ = policy.predict(batch, deterministic=False)

    # Epsilon falls from 1 to 0.05 in 1000 env steps; 500 were made. Half of the draws change it.
    assert np.mean(explored != best) == pytest.approx(0.525 / 2, abs=0.03)


@pytest.mark.parametrize(
    ("obs", "found"),
    [
        (np.zeros(3, np.float32), "float32[3]"),
        (np.zeros((2, 3), np.float32), "float32[2, 3]"),
        (np.zeros((0, 4), np.float32), "float32[0, 4]"),
        (np.zeros((1, 1, 4), np.float32), "float32[1, 1, 4]"),
        (np.zeros(4, np.complex64), "complex64[4]"),
        (np.array([0, 0, np.nan, 0], np.float32), "float32[4] with NaN"),
        ({"obs": OBS}, "object[]"),
        (None, "object[]"),
        ([[0, 0], [0]], "list ("),
    ],
)
def test_wrong_observation_is_refused_with_both_sides(
    policy: SavedPolicy, obs: Any, found: str
) -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        policy.predict(obs)
    error = raised.value
    assert error.found.startswith(found)
    assert error.expected == "float32[4], or a batch float32[n, 4]"
    assert (error.key, error.found in str(error), error.expected in str(error)) == ("obs", 1, 1)


def test_state_for_a_policy_without_memory_is_refused(policy: SavedPolicy) -> None:
    with pytest.raises(SchemaMismatchError, match="'dqn' has no memory"):
        policy.predict(OBS, np.zeros(3))


def test_what_is_no_run_is_refused(run_dir: Path, tmp_path: Path) -> None:
    for absent in (tmp_path / "absent", tmp_path, run_dir / "ckpt", tmp_path / "a.safetensors"):
        with pytest.raises(CheckpointMissingError, match="no run folder"):
            load_policy(absent)
    with pytest.raises(CheckpointMissingError, match="no checkpoint at"):
        load_policy(run_dir, "lates")
    lone = shutil.copy(run_dir / "ckpt" / "ckpt_best.safetensors", tmp_path)
    with pytest.raises(CheckpointMissingError, match="put the run's"):
        load_policy(lone)


@pytest.mark.parametrize("damage", ["cut", "flipped", "pickled"])
def test_damaged_or_foreign_checkpoint_is_refused(
    run_dir: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copy(run_dir / "config.yaml", tmp_path)
    target = tmp_path / "policy.safetensors"
    content = (run_dir / "ckpt" / "ckpt_best.safetensors").read_bytes()
    if damage == "pickled":
        torch.save({"state": {}}, target)
    else:
        end = bytes([content[-1] ^ 1]) if damage == "flipped" else b""
        target.write_bytes(content[:-1] + end)
    with pytest.raises(CheckpointCorruptError):
        load_policy(target)


def test_model_that_does_not_fit_the_checkpoint_is_refused(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    config = load_config(run_dir / "config.yaml")
    config["policy"]["model"]["encoder_hidden_size_list"] = [64, 3]
    save_config(config, tmp_path / "run" / "config.yaml")
    with pytest.raises(CheckpointCorruptError, match="does not fit the policy of") as raised:
        load_policy(tmp_path / "run")
    assert "(64, 64)" in str(raised.value)
    assert "(3, 64)" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"type": "absent"}, UnknownPluginError),
        ({"discount_factor": 3}, ConfigError),
        ({"model": {"obs_shape": "x"}}, ConfigError),
    ],
)
def test_config_that_cannot_work_any_more_is_refused(
    run_dir: Path, tmp_path: Path, change: Mapping[str, Any], error: type[Exception]
) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    config = load_config(run_dir / "config.yaml")
    config["policy"] |= change
    save_config(config, tmp_path / "run" / "config.yaml")
    with pytest.raises(error):
        load_policy(tmp_path / "run")


def test_config_without_a_section_is_refused(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    save_config({"env": {"env_id": "CartPole-v1"}}, tmp_path / "run" / "config.yaml")
    with pytest.raises(ConfigError, match="has no section policy"):
        load_policy(tmp_path / "run")


def test_load_policy_is_a_name_of_the_package() -> None:
    assert dingsdk.load_policy is load_policy
