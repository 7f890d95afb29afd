"""No part of a run takes an illegal action; the env raises if one does."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk import train
from dingsdk.envs.bench import launched, step_for
from dingsdk.envs.check import check_env
from dingsdk.errors import SchemaMismatchError, TaskFailedError
from dingsdk.pipeline.predict import load_policy


class Doors(gym.Env[Any, Any]):
    """Each of eight steps has one or two open doors out of four; a closed one raises an error.

    Door 3 pays most, door 0 least. With ``shuts`` all doors are closed from the fifth step on.
    """

    def __init__(self, shuts: bool = False) -> None:
        self._shuts = shuts
        self.action_space = gym.spaces.Discrete(4)
        self.observation_space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(0, 1, (2,), np.float32),
                "action_mask": gym.spaces.MultiBinary(4),
            }
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        if not self._open[action]:
            raise RuntimeError(f"door {action} is closed")
        self._time += 1
        return self._observe(), float(action), self._time == 8, False, {}

    def _observe(self) -> Any:
        self._open = np.zeros(4, np.int8)
        if not (self._shuts and self._time >= 4):
            self._open[self.np_random.integers(0, 4, 2)] = 1
        seen = np.array([self._time / 8, 1], np.float32)
        # After the last step, no action is legal.
        return {"observation": seen, "action_mask": self._open * (self._time < 8)}


def config(policy: str, **env: Any) -> dict[str, Any]:
    return {
        "exp_name": "doors",
        "env": {
            "collector_env_num": 4,
            "evaluator_env_num": 2,
            "n_evaluator_episode": 4,
            "collector_episode_num": 4,
            "kwargs": env,
        },
        # The first illegal action ends the run.
        "env_manager": {"type": "in_process", "max_retry": 0},
        "policy": {
            "type": policy,
            "learn": {"batch_size": 16, "learner": {"train_iterations": 40}},
            "collect": {"n_sample": 64},
            "eval": {"evaluator": {"eval_freq": 20}},
        },
        "system": {"torch_threads": 1},
    }


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        pytest.param("dqn", "serial", marks=pytest.mark.slow),
        ("dqn", "parallel"),
        ("ppo", "serial"),
        pytest.param("ppo", "parallel", marks=pytest.mark.slow),
        pytest.param("r2d2", "serial", marks=pytest.mark.slow),
        pytest.param("r2d2", "parallel", marks=pytest.mark.slow),
    ],
)
def test_runs_take_only_legal_actions(policy: str, mode: Any, tmp_path: Any) -> None:
    result = train(config(policy), mode, env=Doors, output=tmp_path)

    assert result.reason == "limit"
    saved = load_policy(result.run_dir)
    for door in range(4):
        obs = {
            "observation": np.zeros(2, np.float32),
            "action_mask": np.eye(4, dtype=np.int8)[door],
        }
        assert [saved.predict(obs, deterministic=how)[0] for how in (True, False)] == [door] * 2


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_env_without_legal_actions_ends_the_run(mode: Any, tmp_path: Any) -> None:
    error = SchemaMismatchError if mode == "serial" else TaskFailedError

    with pytest.raises(error, match="allows none of the 4 actions"):
        train(config("dqn", shuts=True), mode, env=Doors, output=tmp_path)


def test_env_is_checked_and_timed_with_legal_actions() -> None:
    assert {each.name: each.detail for each in check_env(Doors) if each.state != "ok"} == {}
    with launched("in_process", Doors, 2) as manager:
        assert step_for(manager, 0.05) > 0
        assert manager.failure_count == 0
        for _ in range(20):
            manager.step(manager.random_action())
        assert manager.failure_count == 0
