"""Small gymnasium envs that count steps, end episodes and fail on request."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv


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
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        type(self).made += 1
        self._length = length
        self._closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
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


def vector_counter(mode: AutoresetMode, num_envs: int = 1, **_: Any) -> SyncVectorEnv:
    """Return Counters with one array of observations; env ``i`` ends after ``i + 2`` steps."""
    env_fns = [partial(Counter, length=index + 2) for index in range(num_envs)]
    return SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode)


@pytest.fixture(autouse=True)
def _tiny_envs() -> Iterator[None]:
    before = dict(gym.registry)
    gym.register("Tiny/Counter-v0", entry_point=Counter)
    for name, mode in (
        ("Native", AutoresetMode.NEXT_STEP),
        ("NativeSameStep", AutoresetMode.SAME_STEP),
        ("NativeDisabled", AutoresetMode.DISABLED),
    ):
        entry = partial(vector_counter, mode)
        gym.register(f"Tiny/{name}-v0", entry_point=Counter, vector_entry_point=entry)
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
