"""Envs and managers whose state is saved in mid-episode and goes on in others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.data import decode_safetensors, encode_safetensors
from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.envs.saving import env_state, set_env_state
from dingsdk.errors import CheckpointCorruptError, NotSavableError


def through_a_file(state: Any) -> Any:
    return decode_safetensors("test", encode_safetensors("test", state))


def play(env: gym.Env[Any, Any], actions: list[Any]) -> list[Any]:
    """Return all that an env says, resets at episode ends included."""
    seen = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append((np.asarray(obs).tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tolist())
    return seen


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1"],
)
def test_env_goes_on_in_another_one(env_id: str) -> None:
    env, other = gym.make(env_id), gym.make(env_id)
    env.reset(seed=3)
    other.reset(seed=9)
    env.action_space.seed(1)
    actions = [env.action_space.sample() for _ in range(300)]
    play(env, actions[:57])
    state = through_a_file(env_state(env))
    expected = play(env, actions[57:])
    play(other, actions[:5])
    set_env_state(other, state)
    assert play(other, actions[57:]) == expected


class Rocket(gym.Env[Any, Any]):
    """Keeps its height where no attribute shows it."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.engine = iter([0.5])

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(1, np.float32), {}


class SavableRocket(Rocket):
    height = 0.0

    def get_state(self) -> dict[str, Any]:
        return {"height": np.float32(self.height)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.height = state["height"]


def test_env_that_keeps_no_data_is_named() -> None:
    with pytest.raises(NotSavableError, match=r"Rocket\.engine is a .*iterator"):
        env_state(gym.wrappers.TimeLimit(Rocket(), 5))


def test_own_methods_are_used_below_wrappers() -> None:
    env, other = (gym.wrappers.TimeLimit(SavableRocket(), 5) for _ in range(2))
    env.reset()
    env.unwrapped.height = 0.25  # type: ignore[attr-defined]
    set_env_state(other, through_a_file(env_state(env)))
    assert other.unwrapped.height == np.float32(0.25)  # type: ignore[attr-defined]
    assert type(other.unwrapped.height) is np.float32  # type: ignore[attr-defined]


def test_state_of_another_env_is_refused() -> None:
    with pytest.raises(CheckpointCorruptError, match=r"PendulumEnv, this one is .*CartPoleEnv"):
        set_env_state(gym.make("CartPole-v1"), env_state(gym.make("Pendulum-v1")))


MANAGERS = [
    {"type": "vector"},
    {"type": "vector", "vectorization_mode": "sync"},
    {"type": "in_process"},
    pytest.param({"type": "subprocess", "envs_per_process": 2}, marks=pytest.mark.slow),
]


def launched(cfg: dict[str, Any], seed: int) -> Any:
    wrappers = [] if cfg == {"type": "vector"} else [{"type": "episode_statistics"}]
    fns = make_env_fns({"env_id": "CartPole-v1", "wrappers": wrappers}, 3)
    manager = create_env_manager(cfg, fns)
    manager.seed(seed)
    manager.launch()
    return manager


def steps(manager: Any, actions: Any) -> list[Any]:
    seen = []
    for each in actions:
        step = manager.step_batch(each)
        columns = [None if part is None else np.asarray(part).tolist() for part in step[:7]]
        seen.append([*columns, dict(step.episode_info)])
    return seen


@pytest.mark.parametrize("cfg", MANAGERS, ids=lambda cfg: "-".join(map(str, cfg.values())))
def test_manager_goes_on_in_another_one(cfg: dict[str, Any]) -> None:
    actions = np.random.default_rng(0).integers(0, 2, (200, 3))
    with launched(cfg, 1) as manager, launched(cfg, 7) as other:
        steps(manager, actions[:101])
        state = through_a_file(manager.get_state())
        obs = np.array(manager.current_obs())
        expected = steps(manager, actions[101:])
        steps(other, actions[:3])
        other.set_state(state)
        assert np.array_equal(other.current_obs(), obs)
        assert steps(other, actions[101:]) == expected


@pytest.mark.slow
def test_asynchronous_managers_say_that_they_cannot() -> None:
    fns = make_env_fns({"env_id": "CartPole-v1"}, 2)
    with create_env_manager({"type": "async_subprocess"}, fns) as manager:
        manager.launch()
        with pytest.raises(NotSavableError, match="AsyncSubprocessEnvManager cannot save"):
            manager.get_state()
