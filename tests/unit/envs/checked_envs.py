"""Envs that break one rule each, for ``check_env``; child processes import this module."""

from __future__ import annotations

import os
import random
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


class Good(gym.Env[Any, Any]):
    """Observes a random number and the step / 100. An episode has ``length`` steps."""

    observation_space: Any = BOX
    action_space: Any = gym.spaces.Discrete(3)

    def __init__(self, length: int = 7) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.drawn = 0, self.draw()
        return self.observe(), {}

    def draw(self) -> float:
        return float(self.np_random.random())

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), float(action) / 3, self.time == self.length, False, {}

    def observe(self) -> Any:
        return np.array([self.drawn, self.time / 100], np.float32)


class RaisesWhenMade(Good):
    def __init__(self) -> None:
        raise OSError("no simulator")


class NoEnv:
    def close(self) -> None: ...


class NoSpace(Good):
    observation_space = None


class ObsAlone(Good):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class NoSeed(Good):
    def reset(self) -> Any:
        return super().reset()


class WrongShape(Good):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class Waiting(Good):
    """Waits for 20 ms in each step, as an env does that asks a simulator or a device."""

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return super().step(action)


class OldStep(Good):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class RaisesInStep(Good):
    def step(self, action: Any) -> Any:
        raise KeyError("lost")


class OwnRandomness(Good):
    def draw(self) -> float:
        return random.random()


class SharedState(Good):
    """All envs of a process share one step count."""

    steps: ClassVar[list[int]] = [0]

    def reset(self, **kwargs: Any) -> Any:
        self.steps[0] = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps[0] += 1
        _, reward, terminated, truncated, info = super().step(action)
        return np.array([0, self.steps[0] / 1000], np.float32), reward, terminated, truncated, info


class RaisesInClose(Good):
    def close(self) -> None:
        raise OSError("the window is gone")


class DiesInAChild(Good):
    maker = os.getpid()

    def step(self, action: Any) -> Any:
        if os.getppid() == int(os.environ["CHECKED_ENVS_PARENT"]):
            os._exit(3)
        return super().step(action)


class Endless(Good):
    def __init__(self) -> None:
        super().__init__(length=-1)

    def observe(self) -> Any:
        return np.zeros(2, np.float32)


class WideObs(Good):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class OutOfBounds(Good):
    def observe(self) -> Any:
        return np.array([2, 0], np.float32)


class Words(Good):
    """Observes text, which has no columns."""

    observation_space = gym.spaces.Text(3)

    def observe(self) -> Any:
        return "abc"


class Continuous(Good):
    """Has an action space that no policy supports."""

    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Discrete(2)])

    def step(self, action: Any) -> Any:
        return super().step(action[0])
