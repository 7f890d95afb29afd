"""What the recording evaluator keeps of the steps of an env that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dingsdk.envs import create_env_manager
from dingsdk.policy import create_policy
from dingsdk.worker.evaluator.recording import RECORDED, RecordingEvaluator


class CountingEnv(gym.Env[Any, Any]):
    """Counts its steps over all episodes; rewards are that count, the return of 3 or 4 steps.

    Its observations share their memory. It raises in the steps ``fails``.
    """

    observation_space = gym.spaces.Dict(
        {
            "time": gym.spaces.Box(0, 1000, (2,), np.float64),
            "image": gym.spaces.Box(0, 255, (3,), np.uint8),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int, is_cut: bool, fails: set[int]) -> None:
        self.length, self.is_cut, self.fails = length, is_cut, fails
        self.steps, self.left, self.buffer = 0, 0, np.zeros(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.length
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps, self.left = self.steps + 1, self.left - 1
        if self.steps in self.fails:
            self.fails.discard(self.steps)
            raise RuntimeError("breaks")
        is_over = self.left == 0
        end = (False, is_over) if self.is_cut else (is_over, False)
        return self._obs(), float(self.steps), *end, {}

    def _obs(self) -> Any:
        self.buffer[:] = self.steps, self.left + 1 / 3
        return {"time": self.buffer, "image": np.full(3, self.left, np.uint8)}


def play(tmp_path: Path, is_batched: bool, fails: Sequence[int] = ()) -> Any:
    """Record 3 episodes of two envs, of 3 steps (terminated) and 4 steps (truncated)."""
    model = {"obs_shape": {"time": 2, "image": 3}, "action_shape": 2}
    policy = create_policy({"type": "dqn", "model": model}, enable_field=["eval"], seed=0)
    mode = policy.eval_mode
    if not is_batched:
        mode = mode._replace(forward_batch=None)
    made = [(3, False, set(fails)), (4, True, set())]
    env = create_env_manager(
        {"type": "in_process"}, [lambda given=given: CountingEnv(*given) for given in made]
    )
    evaluator = RecordingEvaluator({}, env, mode, exp_name=str(tmp_path))
    try:
        _, info = evaluator.eval(n_episode=3)
    finally:
        evaluator.close()
    return evaluator.episodes, info["eval_episode_return"]


@pytest.mark.parametrize("is_batched", [True, False], ids=["columns", "rows"])
def test_whole_episodes_are_recorded_with_their_last_observations(
    tmp_path: Path, is_batched: bool
) -> None:
    episodes, returns = play(tmp_path, is_batched)

    assert [each.columns["reward"].tolist() for each in episodes] == [
        [1, 2, 3],
        [1, 2, 3, 4],
        [4, 5, 6],
    ]
    assert sorted(returns) == [6, 10, 15]
    for each in episodes:
        columns, length = each.columns, len(each)
        assert tuple(columns) == RECORDED
        assert columns["reward"].dtype == np.float32
        is_last = [False] * (length - 1) + [True]
        never = [False] * length
        assert columns["terminated"].tolist() == (is_last if length == 3 else never)
        assert columns["truncated"].tolist() == (is_last if length == 4 else never)
        before, after = columns["obs"], columns["next_obs"]
        assert (before["time"].dtype, before["image"].dtype) == (np.float64, np.uint8)
        # Exact thirds, which float32 would change.
        left = np.arange(length, 0, -1)
        assert (before["time"][:, 1] == left + 1 / 3).all()
        assert (after["time"][:, 1] == left - 1 + 1 / 3).all()
        assert (after["time"][:, 0] == columns["reward"]).all()
        assert (after["image"] == (left - 1)[:, None]).all()


@pytest.mark.parametrize("is_batched", [True, False], ids=["columns", "rows"])
def test_episode_of_an_env_that_failed_is_left_out_and_played_again(
    tmp_path: Path, is_batched: bool
) -> None:
    episodes, returns = play(tmp_path, is_batched, fails=[2])

    # The env is made again, so that its count begins again.
    assert [each.columns["reward"].tolist() for each in episodes] == [
        [1, 2, 3, 4],
        [1, 2, 3],
        [4, 5, 6],
    ]
    assert sorted(returns) == [6, 10, 15]
    assert [each.columns["obs"]["image"][0, 0] for each in episodes] == [4, 3, 3]
