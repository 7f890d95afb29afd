"""Small gymnasium envs that count steps, end episodes and fail on request."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv


class Counter(gym.Env[Any, Any]):
    """Observes [start, step]; start is drawn at reset.

    Action 1 raises, action 2 observes NaN, action 5 reports an abnormal step. Terminates after
    ``length`` steps; a TimeLimit may truncate earlier. The reward is the step number.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(6)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 1}
    made = 0

    def __init__(
        self,
        length: int = 3,
        fails_reset: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        type(self).made += 1
        self._length = length
        self._fails_reset = fails_reset
        self._closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._fails_reset:
            raise RuntimeError("reset on cue")
        self._step = 0
        self._start = float(np.float32(self.np_random.uniform()))
        if options and "start" in options:
            self._start = options["start"]
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise RuntimeError("step on cue")
        self._step += 1
        obs = self._observe()
        reward = float(self._step)
        info: dict[str, Any] = {"step": self._step}
        if action == 2:
            obs = self._observe(np.nan)
        elif action == 5:
            info["abnormal"] = True
        terminated = self._step >= self._length
        if terminated:
            info["episode_info"] = {"length": self._step}
        return obs, reward, terminated, False, info

    def render(self) -> Any:
        return np.full((4, 6, 3), self._step, np.uint8)

    def _observe(self, start: float | None = None) -> Any:
        return np.array([self._start if start is None else start, self._step], np.float32)


class VectorCounter(VectorEnv[Any, Any, Any]):
    """Counter as a native vector env that returns the same arrays at every step.

    Env ``i`` terminates after ``i + 2`` steps. An action 1 raises, an action 2 observes NaN.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, **_: Any) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(6)
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self._length = np.arange(num_envs) + 2
        self._obs = np.zeros((num_envs, 2), np.float32)
        self._reward = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._begin(rows)
        self._terminated[:] = False
        return self._obs, {}

    def _begin(self, rows: Any) -> None:
        self._obs[rows, 0] = self.np_random.uniform(size=self.num_envs)[rows]
        self._obs[rows, 1] = 0

    def step(self, actions: Any) -> Any:
        if (actions == 1).any():
            raise RuntimeError("step on cue")
        ended = self._terminated.copy()
        self._obs[:, 1] += 1
        self._reward[:] = self._obs[:, 1]
        self._begin(ended)
        self._reward[ended] = 0
        self._obs[actions == 2, 0] = np.nan
        self._terminated[:] = (self._obs[:, 1] >= self._length) & ~ended
        return self._obs, self._reward, self._terminated, self._truncated, {}


class SameStepVectorCounter(VectorCounter):
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: Any) -> Any:
        self._terminated[:] = False
        obs, reward, terminated, truncated, infos = super().step(actions)
        if terminated.any():
            infos = {"final_obs": obs.copy(), "_final_obs": terminated.copy()}
            self._begin(terminated)
        return obs, reward, terminated, truncated, infos


class DisabledVectorCounter(VectorCounter):
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}


@pytest.fixture(autouse=True)
def _tiny_envs() -> Iterator[None]:
    before = dict(gym.registry)
    gym.register("Tiny/Counter-v0", entry_point=Counter)
    for name, cls in (
        ("Native", VectorCounter),
        ("NativeSameStep", SameStepVectorCounter),
        ("NativeDisabled", DisabledVectorCounter),
    ):
        gym.register(f"Tiny/{name}-v0", entry_point=Counter, vector_entry_point=cls)
    yield
    gym.registry.clear()
    gym.registry.update(before)


@pytest.fixture
def counter_cls() -> type[Counter]:
    """The class behind Tiny/Counter-v0; ``made`` counts its instances."""
    Counter.made = 0
    return Counter


@pytest.fixture
def fork_server() -> Any:
    """A forkserver context with preloaded env code, so that its processes start fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dingsdk.envs.subprocess"])
    return context
