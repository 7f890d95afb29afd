from __future__ import annotations

import pytest

from dingsdk.config import to_easydict
from tests.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def main_config():
    """A function that makes the parts of a compiled config that commanders read."""

    def make(**commander):
        return to_easydict(
            {
                "exp_name": "runs/x",
                "seed": 3,
                "env": {
                    "env_id": "CartPole-v1",
                    "kwargs": {},
                    "wrappers": [],
                    "collector_env_num": 8,
                    "evaluator_env_num": 5,
                    "n_evaluator_episode": 10,
                    "stop_value": 475.0,
                    "collector_episode_num": 4,
                    "evaluator_episode_num": 2,
                },
                "env_manager": {"type": "vector", "episode_num": float("inf")},
                "policy": {
                    "type": "dqn",
                    "model": {"obs_shape": 4, "action_shape": 2},
                    "learn": {"learner": {"type": "base", "train_iterations": 10}},
                    "collect": {
                        "n_sample": 64,
                        "parallel_collector": {"type": "zergling", "print_freq": 5},
                    },
                    "eval": {},
                    "other": {
                        "replay_buffer": {"type": "naive", "replay_buffer_size": 100},
                        "commander": {"type": "solo", **commander},
                        "eps": {"type": "linear", "start": 1.0, "end": 0.0, "decay": 1000},
                    },
                },
            }
        )

    return make
