"""Wrappers named in a config: built-in wrappers, gymnasium's wrappers, and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.envs import (
    EnvFn,
    create_env_manager,
    get_vec_env_setting,
    make_env_fns,
    measure_observations,
)
from dingsdk.envs.wrappers import NormalizeObservation
from dingsdk.errors import ConfigError, UnknownPluginError
from dingsdk.pipeline.compile import compile_config
from tests.extras import needs
from tests.own_plugins import using


def make(*wrappers: Any, env_id: str = "CartPole-v1", **kwargs: Any) -> Any:
    return EnvFn({"env_id": env_id, "kwargs": kwargs, "wrappers": wrappers})()


@pytest.mark.parametrize(
    ("wrapper", "shape"),
    [
        ({"type": "frame_stack", "stack_size": 3}, (3, 4)),
        ({"type": "FrameStackObservation", "stack_size": 2}, (2, 4)),
        ("flatten_obs", (4,)),
        ("FlattenObservation", (4,)),
    ],
)
def test_wrapper_changes_the_observation(wrapper: Any, shape: tuple[int, ...]) -> None:
    env_cfg = {"env_id": "CartPole-v1", "wrappers": [wrapper]}
    with create_env_manager({"type": "vector"}, make_env_fns(env_cfg, 2)) as manager:
        manager.launch()
        assert manager.observation_space.shape == shape
        assert manager.step_batch(np.zeros(2, int)).obs.shape == (2, *shape)


def test_selected_entries_are_observed_in_their_order() -> None:
    env = make({"type": "select_obs", "indices": [2, 0]})
    whole, _ = make().reset(seed=3)

    obs, _ = env.reset(seed=3)

    assert obs.tolist() == whole[[2, 0]].tolist()
    assert env.observation_space.high[1] == np.float32(4.8)
    assert env.observation_space.contains(obs)


@pytest.mark.parametrize(
    ("env_id", "indices", "text"),
    [
        *(("CartPole-v1", each, "keeps the entries") for each in ([], [4], [-1], [True])),
        ("FrozenLake-v1", [0], "Discrete"),
    ],
)
def test_indices_outside_of_a_vector_observation_are_refused(
    env_id: str, indices: list[Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make({"type": "select_obs", "indices": indices}, env_id=env_id)


CLIP = {"type": "clip_reward", "max_reward": 0.5}


@pytest.mark.parametrize(
    ("wrapper", "reward"),
    [
        (CLIP, 1.0),
        ({**CLIP, "evaluate": False}, 1.0),
        ({**CLIP, "evaluate": True}, 0.5),
        ({"type": "half"}, 1.0),
        ({"type": "half", "evaluate": True}, 0.5),
        ({"type": "quarter"}, 0.25),
        ({"type": "quarter", "evaluate": False}, 1.0),
    ],
)
def test_evaluations_leave_out_wrappers_that_are_only_for_training(
    wrapper: dict[str, Any], reward: float
) -> None:
    class Quarter(gym.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return 0.25 * float(reward)

    class Half(Quarter):
        training_only = True

        def reward(self, reward: Any) -> float:
            return 0.5 * float(reward)

    section = {"env_id": "CartPole-v1", "wrappers": [wrapper]}
    with using(env_wrappers={"quarter": Quarter, "half": Half}):
        for is_evaluation in (False, True):
            env = EnvFn({**section, "is_evaluation": is_evaluation})()
            env.reset(seed=0)
            trained = 0.25 if wrapper["type"] == "quarter" else 0.5
            assert env.step(0)[1] == (reward if is_evaluation else trained)
            env.close()
    assert [each.get("is_evaluation", False) for each in get_vec_env_setting(section)[2]] == [True]


def test_evaluate_must_be_true_or_false() -> None:
    with pytest.raises(ConfigError, match="whose evaluate is not true or false"):
        make({**CLIP, "evaluate": "no"})


def test_episode_statistics_are_put_into_the_info() -> None:
    env_cfg = {
        "env_id": "CartPole-v1",
        "kwargs": {"max_episode_steps": 3},
        "wrappers": ["episode_statistics", {"type": "clip_reward", "max_reward": 0.5}],
    }
    with create_env_manager({"type": "in_process"}, make_env_fns(env_cfg, 1)) as manager:
        manager.launch()
        for _ in range(2):
            for _ in range(3):
                timestep = manager.step({0: 0})[0]
            own = {"episode_length": 3, "episode_return": 3.0, "eval_episode_return": 3.0}
            assert timestep.info["episode_info"] == own
            assert timestep.info["eval_episode_return"] == 3.0


def test_statistics_of_random_steps_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "statistics.npz"
    measured = make()
    closed = []
    measured.close = lambda: closed.append(measured)
    measure_observations(lambda: measured, path, steps=500, seed=3)
    assert closed == [measured]
    seen = []
    env = make()
    env.action_space.seed(3)
    obs, _ = env.reset(seed=3)
    for _ in range(500):
        seen.append(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    with np.load(path) as saved:
        np.testing.assert_allclose(saved["mean"], np.mean(seen, axis=0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(saved["var"], np.var(seen, axis=0), rtol=1e-3)


@pytest.mark.parametrize("offset", [0.0, 5e6 + 0.25, 1e9 + 7])
def test_large_observations_are_normalised_exactly(tmp_path: Path, offset: float) -> None:
    class Large(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = gym.spaces.Discrete(2)
        steps = 0

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self.step(0)[0], {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return np.array([offset - 2 * (-1) ** self.steps, offset]), 0.0, False, False, {}

    file = tmp_path / "statistics.npz"
    measure_observations(Large, file, steps=100)
    env: Any = NormalizeObservation(Large(), str(file), clip=5.0)
    assert env.observation_space == gym.spaces.Box(-5, 5, (2,))
    assert env.reset()[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert env.step(0)[0].tolist() == pytest.approx([-1.0, 0.0], abs=1e-6)
    assert env.observation(np.array([offset + 4, offset + 1])).tolist() == [2.0, 5.0]
    assert env.observation(np.array([offset - 99, offset])).tolist() == [-5.0, 0.0]


def test_statistics_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="measure_observations"):
        make({"type": "normalize_obs", "statistics": str(tmp_path / "none.npz")})
    path = tmp_path / "other.npz"
    for mean, var, clip, text in (
        (np.zeros(3), np.ones(3), 10.0, r"mean \[0. 0. 0.\]"),
        (np.zeros(4), np.array([1, 1, 1, -0.5]), 10.0, "-0.5"),
        (np.array([0, 0, np.nan, 0]), np.ones(4), 10.0, "nan"),
        (np.zeros(4), np.ones(4), 0.0, "clip 0.0"),
    ):
        np.savez(path, mean=mean, var=var)
        with pytest.raises(ConfigError, match=text):
            make({"type": "normalize_obs", "statistics": str(path), "clip": clip})


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickled_statistics_are_refused_and_not_loaded(tmp_path: Path) -> None:
    path, made = tmp_path / "evil.npz", tmp_path / "made"
    np.savez(path, mean=np.array([Evil(made)] * 4, object), var=np.ones(4))
    with pytest.raises(ConfigError, match="measure_observations"):
        make({"type": "normalize_obs", "statistics": str(path)})
    assert not made.exists()


@needs("video")
def test_record_video_without_a_render_mode_is_refused_before_the_run(tmp_path: Path) -> None:
    video = {"type": "record_video", "folder": str(tmp_path / "videos")}
    config = {
        "exp_name": "run",
        "env": {"env_id": "CartPole-v1", "wrappers": [video]},
        "policy": {"type": "dqn"},
    }
    with pytest.raises(ConfigError, match=r"[Rr]ender") as caught:
        compile_config(config)
    assert caught.value.path == "env.wrappers[0]"


def test_record_video_without_moviepy_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(ConfigError, match="pip install"):
        make({"type": "record_video", "folder": str(tmp_path)}, render_mode="rgb_array")


@needs("video")
@pytest.mark.slow
def test_episodes_are_recorded_by_every_env(tmp_path: Path) -> None:
    video = {"type": "record_video", "folder": str(tmp_path), "every": 2}
    kwargs = {"render_mode": "rgb_array"}
    env_cfg = {"env_id": "Tiny/Counter-v0", "kwargs": kwargs, "wrappers": [video]}
    with create_env_manager({"type": "vector"}, make_env_fns(env_cfg, 2)) as manager:
        manager.launch()
        for _ in range(10):  # three episodes and a step
            manager.step_batch(np.zeros(2, int))
    assert len(list(tmp_path.glob("*.mp4"))) == 4


def test_error_names_a_wrapper_that_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match=r"env\.wrappers\[0\]: atari cannot be made"):
        make("atari")
    with pytest.raises(ConfigError, match="stack_size"):
        make("frame_stack")
    with pytest.raises(UnknownPluginError, match="frame_stack"):
        make("frame_stck")
    with pytest.raises(UnknownPluginError):
        make("vector")  # a module of gymnasium.wrappers, not a wrapper
