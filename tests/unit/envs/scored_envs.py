"""Envs whose last info has numbers, for child processes and workers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Scored(gym.Env[Any, Any]):
    """Ends after three steps of reward 2. Episode 0 is a success, 1 is none, 2 is one, and so on.

    Episodes that were reset before their end do not count.

    The score of episode 0 is 7, that of episode 1 is 8, and so on.

    Args:
        **more: Further entries of the last info.
    """

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._ended = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        is_over = self._time == 3
        info: dict[str, Any] = {"time": self._time, "text": "on its way"}
        if is_over:
            is_success = np.bool_(self._ended % 2 == 0)
            distance = np.array([4.5])
            info |= {"is_success": is_success, "score": 7 + self._ended, "distance": distance}
            info |= self._more
            self._ended += 1
        return np.array([self._time], np.float32), 2.0, is_over, False, info


def told(reward: float = 99.0) -> Any:
    """Return an env with ``RecordEpisodeStatistics`` beneath a wrapper that replaces rewards."""
    env = gym.wrappers.RecordEpisodeStatistics(Scored())
    return gym.wrappers.TransformReward(env, lambda _: reward)


class Tenth(gym.RewardWrapper[Any, Any]):
    """Scales rewards by 0.1, those of several players too."""

    def reward(self, reward: Any) -> Any:
        return 0.1 * reward
