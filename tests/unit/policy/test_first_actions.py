"""Policies of discrete actions take spaces that do not start at 0."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dingsdk.envs import create_env_manager
from dingsdk.errors import ConfigTypeError
from dingsdk.policy import DQNPolicy, PPOPolicy, R2D2Policy, create_policy
from dingsdk.worker.collector.factory import create_collecting_rollout


class Shifted(gym.Env[Any, Any]):
    """Observes and takes numbers that do not start at 0."""

    observation_space = spaces.Discrete(3, start=-1)

    def __init__(self, actions: Any) -> None:
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return -1, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._time += 1
        return self._time % 3 - 1, float(np.sum(action)), self._time == 4, False, {}


@pytest.mark.parametrize(
    ("cls", "actions"),
    [
        (DQNPolicy, spaces.Discrete(2, start=1)),
        (R2D2Policy, spaces.Discrete(2, start=1)),
        (PPOPolicy, spaces.Discrete(2, start=-4)),
        (PPOPolicy, spaces.MultiDiscrete([2, 3], start=[5, 0])),
    ],
)
def test_actions_and_observations_may_start_at_any_number(cls: Any, actions: Any) -> None:
    torch.manual_seed(0)
    kind = {DQNPolicy: "dqn", R2D2Policy: "r2d2", PPOPolicy: "ppo"}[cls]
    model = cls.model_from_spaces(Shifted.observation_space, actions)
    assert model["obs_shape"] == "Discrete(3, start=-1)"
    # R2D2 makes sequences itself if the buffer does not.
    other = {"replay_buffer": {"type": "naive"}}
    policy = create_policy({"type": kind, "model": model, "other": other}, seed=0)
    setting = policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0})
    with create_env_manager(
        {"type": "in_process", "max_retry": 0}, [lambda: Shifted(actions)]
    ) as env:
        env.seed(0)
        env.launch()
        rollout, writer = create_collecting_rollout(env, policy.collect_mode, 8, True)
        while writer.pending_rows < 4:
            rollout.round(0, setting)
        batch = writer.flush()
        obs = env.current_obs()
    for row in batch:
        taken = np.asarray(row["action"]).reshape(-1, *actions.shape)
        assert all(actions.contains(each[()]) for each in taken)
    policy.learn_mode.forward(batch)
    greedy = policy.eval_mode.forward_batch(obs, [0])["action"]
    assert actions.contains(greedy[0])


def test_empty_list_of_first_actions_is_refused():
    with pytest.raises(ConfigTypeError, match=r"policy\.model\.action_start"):
        DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_start": []}})
