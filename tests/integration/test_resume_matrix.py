"""Policies over the kinds of spaces that they take: interrupted and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dingsdk.testing import StopAndGo

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {
    "flat": VECTOR,
    "image": IMAGE,
    "dict": spaces.Dict(picture=IMAGE, vector=VECTOR, place=spaces.Discrete(4)),
    "mask": spaces.Dict(vector=VECTOR, action_mask=spaces.MultiBinary(4)),
}
ACTIONS = {"discrete": spaces.Discrete(4), "box": spaces.Box(-2, 2, (2,), np.float32)}


class Noise(gym.Env[Any, Any]):
    """Episodes of 5 to 12 steps whose observations and rewards are drawn; masked actions raise."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's declaration

    def __init__(self, observation: str, action: str) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self.is_masked = observation == "mask"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 13))
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_masked and not self.mask[action]:
            raise RuntimeError(f"action {action} is masked")
        self.left -= 1
        reward = float(np.sum(action)) * 0.1 + float(self.np_random.normal())
        return self._drawn(), reward, self.left == 0, False, {}

    def _drawn(self) -> Any:
        draw = self.np_random
        vector = draw.uniform(-1, 1, 3).astype(np.float32)
        picture = draw.integers(0, 256, IMAGE.shape, np.uint8)
        self.mask = np.array([1, *draw.integers(0, 2, 3)], np.int8)
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            parts = {
                "picture": picture,
                "vector": vector,
                "place": np.int64(draw.integers(4)),
                "action_mask": self.mask,
            }
            return {name: parts[name] for name in space.spaces}
        return vector if space == VECTOR else picture


CASES = [
    ("dqn", "mask", "discrete"),
    ("r2d2", "image", "discrete"),
    ("r2d2", "mask", "discrete"),
    ("ppo", "mask", "discrete"),
    ("ppo", "flat", "box"),
    ("ppo", "image", "box"),
    ("ppo", "dict", "box"),
    ("sac", "flat", "box"),
]


def config(policy: str, observation: str, action: str) -> dict[str, Any]:
    updates = {"epoch_per_collect": 2} if policy == "ppo" else {"update_per_collect": 4}
    return {
        "seed": 5,
        "env": {
            "env_id": f"{__name__}:Noise",
            "kwargs": {"observation": observation, "action": action},
            "collector_env_num": 2,
            "evaluator_env_num": 2,
            "n_evaluator_episode": 2,
            "stop_value": 1e9,
        },
        "env_manager": {"type": "in_process", "max_retry": 0},
        "policy": {
            "type": policy,
            "learn": {"batch_size": 8, "learner": {"train_iterations": 40}, **updates},
            "collect": {"n_sample": 64 if policy == "ppo" else 16},
            "eval": {"evaluator": {"eval_freq": 20}},
            "other": {"replay_buffer": {"replay_buffer_size": 256}},
        },
        "system": {"validate_state": True},
    }


QUICK, *LONGER = CASES


@pytest.mark.parametrize(
    "case", [QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in LONGER)], ids="-".join
)
def test_interrupted_run_equals_a_whole_one(tmp_path: Path, case: tuple[str, str, str]) -> None:
    StopAndGo(config(*case)).run(tmp_path, after_iterations=[7, 26])
