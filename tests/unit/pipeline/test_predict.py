"""``load_policy`` and ``predict``: loaded weights, accepted shapes and refused inputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch

from dingsdk.config import apply_set, load_config, save_config
from dingsdk.data import SampleBatch
from dingsdk.data.pytree import map_leaves
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    ConfigTypeError,
    NonFiniteError,
    PolicyOutputError,
    SchemaMismatchError,
    UnknownPluginError,
)
from dingsdk.pipeline.predict import SavedPolicy, load_policy
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.policy import DQNPolicy, create_policy
from dingsdk.worker.learner.checkpoint import load_checkpoint, save_checkpoint
from tests.fakes import StepCounter
from tests.runs import save_run

OBS = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("run"))


def changed_run(run_dir: Path, folder: Path, *sets: str) -> Path:
    """Copy a run folder, and set keys of its config."""
    shutil.copytree(run_dir, folder)
    config = load_config(folder / "config.yaml")
    for each in sets:
        apply_set(config, each)
    save_config(config, folder / "config.yaml")
    return folder


@pytest.fixture(autouse=True)
def _own_manager() -> Iterator[None]:
    with use_manager(PluginManager(Switches())):
        yield


@pytest.fixture(scope="module")
def policy(run_dir: Path) -> SavedPolicy:
    return load_policy(run_dir)


def greedy(run_dir: Path, obs: Any, stem: str = "ckpt_best") -> list[int]:
    """Compute the greedy actions directly from the weights in the checkpoint file."""
    weights = safetensors.torch.load_file(run_dir / "ckpt" / f"{stem}.safetensors")
    hidden = torch.as_tensor(obs)
    for layer in ("encoder.0", "encoder.1"):
        weight, bias = (weights[f"state.model.{layer}.{name}"] for name in ("weight", "bias"))
        hidden = torch.relu(hidden @ weight.T + bias)
    values = hidden @ weights["state.model.head.weight"].T + weights["state.model.head.bias"]
    return values.argmax(-1).tolist()


def test_best_checkpoint_predicts_the_greedy_actions_of_its_weights(
    run_dir: Path, policy: SavedPolicy
) -> None:
    batch = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

    actions, state = policy.predict(batch)

    assert actions.tolist() == greedy(run_dir, batch)
    assert len(set(actions.tolist())) == 2
    assert (state, policy.train_iter, policy.checkpoint.name) == (None, 7, "ckpt_best.safetensors")


def test_observations_are_scaled_by_the_saved_statistics(tmp_path: Path) -> None:
    save_run(tmp_path, "policy.normalize.obs=true")
    obs = np.random.default_rng(0).normal(50, 9, size=(64, 4)).astype(np.float32)
    trained = create_policy(load_config(tmp_path / "config.yaml")["policy"], seed=3)
    before = trained.eval_mode.forward_batch(obs)["action"].tolist()  # type: ignore[misc]
    trained.learn_mode.observe(SampleBatch({"obs": obs}))  # type: ignore[misc]
    expected = trained.eval_mode.forward_batch(obs)["action"].tolist()  # type: ignore[misc]
    state = trained.learn_mode.state_dict()
    save_checkpoint(tmp_path / "ckpt", "ckpt_best", state, iteration=7, envstep=500)

    assert load_policy(tmp_path).predict(obs)[0].tolist() == expected != before


def test_latest_checkpoint_or_a_checkpoint_file_can_be_loaded(run_dir: Path) -> None:
    batch = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    expected = greedy(run_dir, batch, "iteration_9")
    path = run_dir / "ckpt" / "iteration_9.safetensors"

    for found in (
        load_policy(run_dir, "latest"),
        load_policy(run_dir, str(path)),
        load_policy(run_dir, "iteration_9"),
        load_policy(path),
        load_policy(path.with_suffix("")),
    ):
        assert found.predict(batch)[0].tolist() == expected
        assert found.train_iter == 9


def test_checkpoint_file_next_to_its_config_can_be_loaded(run_dir: Path, tmp_path: Path) -> None:
    shutil.copy(run_dir / "config.yaml", tmp_path)
    shutil.copy(run_dir / "ckpt" / "ckpt_best.safetensors", tmp_path / "cartpole.safetensors")
    assert load_policy(tmp_path / "cartpole.safetensors").train_iter == 7


def test_checkpoint_path_together_with_a_checkpoint_name_is_refused(run_dir: Path) -> None:
    given = run_dir / "ckpt" / "ckpt_best.safetensors"
    with pytest.raises(ConfigError, match="'latest' cannot be chosen too"):
        load_policy(given, "latest")


def test_spaces_are_read_from_the_config_without_creating_the_env(
    run_dir: Path, tmp_path: Path, policy: SavedPolicy
) -> None:
    found = load_policy(
        changed_run(run_dir, tmp_path / "run", "env.env_id=absent_package:AbsentEnv")
    )

    env = gym.make("CartPole-v1")
    assert found.observation_space == policy.observation_space == env.observation_space
    assert found.action_space == policy.action_space == env.action_space


def test_config_without_the_spaces_is_refused(run_dir: Path, tmp_path: Path) -> None:
    changed_run(run_dir, tmp_path / "run", "env.observation_space=null")
    with pytest.raises(ConfigError, match=r"has no env\.observation_space, which a run saves"):
        load_policy(tmp_path / "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_policy_trained_on_a_gpu_runs_on_the_cpu_without_one(run_dir: Path, tmp_path: Path) -> None:
    changed_run(run_dir, tmp_path / "run", "policy.cuda=true")
    expected = load_policy(run_dir).predict(OBS)
    assert load_policy(tmp_path / "run").predict(OBS) == expected


def test_exploration_continues_from_the_env_steps_of_the_checkpoint(policy: SavedPolicy) -> None:
    batch = np.repeat(OBS[None], 4000, 0)
    best, _ = policy.predict(batch)
    assert len(set(best.tolist())) == 1

    explored, _ = policy.predict(batch, deterministic=False)

    # At 500 of 1000 env steps epsilon is 0.525. Half of the random actions differ from the best.
    assert np.mean(explored != best) == pytest.approx(0.525 / 2, abs=0.03)


@pytest.mark.parametrize(
    ("obs", "found", "expected"),
    [
        (np.zeros(3, np.float32), "float32[3]", "float32[4], or a batch"),
        (np.zeros((2, 3), np.float32), "float32[2, 3]", "float32[2, 4]"),
        (np.zeros((0, 4), np.float32), "float32[0, 4]", "float32[4], or a batch"),
        (np.zeros((1, 1, 4), np.float32), "float32[1, 1, 4]", "float32[4], or a batch"),
        (np.zeros(4, np.complex64), "complex64[4]", "float32[4], or a batch"),
        (np.array([0, 0, np.nan, 0], np.float32), "float32[4] with NaN", "Box("),
        ({"obs": OBS}, "object[]", "float32[4], or a batch"),
        (None, "object[]", "float32[4], or a batch"),
        ([[0, 0], [0]], "list (", "float32[4], or a batch"),
    ],
)
def test_wrong_observation_is_refused_with_found_and_expected_form(
    policy: SavedPolicy, obs: Any, found: str, expected: str
) -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        policy.predict(obs)
    error = raised.value
    assert error.found.startswith(found)
    assert error.expected.startswith(expected)
    assert str(error) == f"predict: obs is {error.found}, expected {error.expected}"


def test_switch_that_is_neither_true_nor_false_is_refused(policy: SavedPolicy) -> None:
    with pytest.raises(ConfigTypeError, match="deterministic: expected True or False"):
        policy.predict(OBS, deterministic=np.ones(2))  # type: ignore[arg-type]


def test_path_without_a_run_is_refused(run_dir: Path, tmp_path: Path) -> None:
    for absent in (tmp_path / "absent", tmp_path, run_dir / "ckpt", tmp_path / "a.safetensors"):
        with pytest.raises(CheckpointMissingError, match="run folder"):
            load_policy(absent)
    with pytest.raises(CheckpointMissingError, match=r"'lates'\. Known: ckpt_best, iteration_9"):
        load_policy(run_dir, "lates")
    with pytest.raises(CheckpointMissingError):
        load_policy(run_dir, "")
    lone = shutil.copy(run_dir / "ckpt" / "ckpt_best.safetensors", tmp_path)
    with pytest.raises(CheckpointMissingError, match="put the run's"):
        load_policy(lone)


@pytest.mark.parametrize(
    ("sets", "error", "text"),
    [
        (["policy.type=absent"], UnknownPluginError, "absent"),
        (["policy.discount_factor=3"], ConfigError, "discount_factor"),
        (["policy.model={obs_shape: x}"], ConfigError, "obs_shape"),
        (["policy=null"], ConfigError, "has no section policy"),
        (
            ["policy.model.encoder_hidden_size_list=[64, 3]"],
            CheckpointCorruptError,
            r"does not fit the policy of .*\(64, 64\).*\(3, 64\)",
        ),
    ],
)
def test_config_of_a_run_that_is_invalid_or_does_not_fit_the_checkpoint_is_refused(
    run_dir: Path, tmp_path: Path, sets: list[str], error: type[Exception], text: str
) -> None:
    changed_run(run_dir, tmp_path / "run", *sets)
    with pytest.raises(error, match=f"(?s){text}"):
        load_policy(tmp_path / "run")


class Seen(gym.Env[Any, Any]):
    """An environment with a dict, image or number observation."""

    action_space: Any = gym.spaces.Discrete(3)

    def __init__(self, kind: str = "dict") -> None:
        image = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
        speed = gym.spaces.Box(-1, 1, (2,), np.float32)
        kinds = {
            "dict": gym.spaces.Dict({"image": image, "speed": speed}),
            "image": image,
            "number": gym.spaces.Discrete(5),
        }
        self.observation_space: Any = kinds[kind]
        self.render_mode = None


def save_untrained(
    folder: Path, policy_cls: type | None = None, kind: str = "dict", **policy: Any
) -> SavedPolicy:
    """Save an untrained policy as a run, and load it."""
    config = {"env": {"kwargs": {"kind": kind}}, "policy": {"collect": {"n_sample": 8}, **policy}}
    cfg = compile_run(config, env=Seen, policy=policy_cls)
    save_config(cfg, folder / "config.yaml")
    made = create_policy(cfg.policy, enable_field=["learn"], seed=0)
    save_checkpoint(folder / "ckpt", "ckpt_best", made.learn_mode.state_dict(), iteration=1)
    return load_policy(folder)


def as_row(obs: Any) -> Any:
    """Return an observation as a batch of one."""
    if isinstance(obs, dict):
        return {name: as_row(value) for name, value in obs.items()}
    return np.asarray(obs)[None]


@pytest.mark.parametrize("kind", ["dict", "image", "number"])
def test_dicts_images_and_numbers_are_accepted_single_or_batched(tmp_path: Path, kind: str) -> None:
    found = save_untrained(tmp_path, kind=kind, type="dqn")
    obs = found.observation_space.sample()

    single, _ = found.predict(obs)
    many, _ = found.predict(as_row(obs))

    assert np.shape(single) == ()
    assert many.tolist() == [single]


def test_each_part_of_a_dict_is_checked(tmp_path: Path) -> None:
    found = save_untrained(tmp_path, type="dqn")
    good = found.observation_space.sample()
    wrong = [
        ({"image": good["image"]}, "obs", "a dict with ['image', 'speed'], or a batch"),
        ({1: 2, "speed": 3}, "obs", "a dict with ['image', 'speed']"),
        (good["speed"], "obs", "a dict with ['image', 'speed']"),
        ({**good, "speed": np.zeros(3)}, "obs.speed", "float32[2], or a batch"),
        ({**good, "image": good["image"] / 255}, "obs.image", "Box(0, 255, (12, 12, 3), uint8)"),
        ({**good, "image": good["image"].astype(int) + 300}, "obs.image", "Box(0, 255, "),
        ({**good, "speed": np.zeros((4, 2))}, "obs.speed", "float32[2], or a batch"),
        ({**good, "image": good["image"][None]}, "obs.speed", "float32[1, 2]"),
    ]
    for obs, key, expected in wrong:
        with pytest.raises(SchemaMismatchError) as raised:
            found.predict(obs)
        assert raised.value.key == key
        assert raised.value.expected.startswith(expected)


class Counting(StepCounter):
    state_size = 2


def test_recurrent_policy_receives_the_state_that_it_returned(tmp_path: Path) -> None:
    found = save_untrained(tmp_path, Counting, kind="number")

    state, actions = None, []
    for _ in range(4):
        action, state = found.predict(3, state)
        actions.append(int(action))
    assert actions == [0, 1, 2, 0]
    assert state.tolist() == [4, 4]

    many, states = found.predict([1, 2, 3])
    states[1] = 5
    many, states = found.predict([1, 2, 3], states, deterministic=False)
    assert many.tolist() == [1, 2, 1]
    assert states.tolist() == [[2, 2], [6, 6], [2, 2]]
    assert states.dtype == np.float32


@pytest.mark.parametrize(
    ("obs", "state"), [(3, np.zeros(3)), (3, np.zeros((1, 2))), ([3, 3], np.zeros(2)), (3, "ab")]
)
def test_state_of_a_wrong_shape_or_type_is_refused(tmp_path: Path, obs: Any, state: Any) -> None:
    found = save_untrained(tmp_path, Counting, kind="number")
    with pytest.raises(SchemaMismatchError, match="predict: state is") as raised:
        found.predict(obs, state)
    assert raised.value.expected.startswith("float32[2" if obs == 3 else "float32[2, 2]")


class OutOfRange(Counting):
    """Returns actions outside the action space."""

    def act(self, obs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = super().act(obs, *args, **kwargs)
        return {**found, "action": found["action"] + 3}


def test_action_outside_the_action_space_is_an_error(tmp_path: Path) -> None:
    found = save_untrained(tmp_path, OutOfRange, kind="number")
    with pytest.raises(PolicyOutputError, match="the env needs int64"):
        found.predict(3)


def test_nan_weights_are_an_error(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    state = load_checkpoint(run_dir / "ckpt" / "ckpt_best").state
    state["model"]["head.bias"][0] = np.nan
    save_checkpoint(tmp_path / "run" / "ckpt", "ckpt_best", state, iteration=1)
    with pytest.raises(NonFiniteError, match="the weights diverged"):
        load_policy(tmp_path / "run").predict(OBS)


class ByDicts(DQNPolicy):
    """Supports only the dict form of ``forward``, and records the types of its observations."""

    given: ClassVar[list[type]] = []

    def _without_columns(self, mode: Any) -> Any:
        def forward(data: dict[int, Any], **setting: Any) -> Any:
            self.given.extend(type(obs) for obs in data.values())
            found = mode.forward(map_leaves(np.asarray, data), **setting)
            return {i: {"action": torch.as_tensor(each["action"])} for i, each in found.items()}

        return mode._replace(forward=forward, forward_batch=None)

    @property
    def eval_mode(self) -> Any:
        return self._without_columns(super().eval_mode)

    @property
    def collect_mode(self) -> Any:
        return self._without_columns(super().collect_mode)


@pytest.mark.parametrize("transforms", [True, False])
def test_dict_form_policy_receives_tensors_or_arrays_as_in_training(
    run_dir: Path, tmp_path: Path, transforms: bool
) -> None:
    collect = {"collector": {"type": "sample", "transform_obs": transforms}}
    cfg = compile_run("cartpole-dqn", policy=ByDicts)
    cfg.policy.collect.update(collect)
    save_config(cfg, tmp_path / "config.yaml")
    shutil.copytree(run_dir / "ckpt", tmp_path / "ckpt")
    found = load_policy(tmp_path)
    ByDicts.given.clear()

    batch = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    assert found.predict(batch)[0].tolist() == greedy(run_dir, batch)
    assert np.shape(found.predict(OBS)[0]) == ()
    assert set(ByDicts.given) == {torch.Tensor}
    ByDicts.given.clear()
    found.predict(batch, deterministic=False)
    assert set(ByDicts.given) == {torch.Tensor if transforms else np.ndarray}
