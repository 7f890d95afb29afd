"""DQN from configs, with images and dicts."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dingsdk.pipeline.train import train
from dingsdk.policy import DQNPolicy

SIZE = 5


class Catch(gym.Env[Any, Any]):
    """A ball falls through a picture; the paddle in the last row must be below it.

    With ``is_dict`` the observation is a dict: the picture without the paddle, and its column.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's declaration

    def __init__(self, is_dict: bool = False) -> None:
        self.is_dict = is_dict
        picture = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.observation_space = (
            spaces.Dict(picture=picture, place=spaces.Discrete(SIZE)) if is_dict else picture
        )
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.column, self.place = 0, int(self.np_random.integers(SIZE)), SIZE // 2
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.row += 1
        self.place = int(np.clip(self.place + int(action) - 1, 0, SIZE - 1))
        is_down = self.row == SIZE - 1
        reward = float(self.place == self.column) if is_down else 0.0
        return self._obs(), reward, is_down, False, {}

    def _obs(self) -> Any:
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[self.row, self.column] = 255
        if self.is_dict:
            return {"picture": picture, "place": np.int64(self.place)}
        picture[SIZE - 1, self.place] = 255
        return picture


CATCH = {
    "exp_name": "catch",
    "seed": 0,
    "env": {
        "collector_env_num": 8,
        "evaluator_env_num": 4,
        "n_evaluator_episode": 20,
        "stop_value": 0.99,
        "kwargs": {},
    },
    "env_manager": {"type": "in_process"},
    "policy": {
        "type": "dqn",
        "nstep": 2,
        "model": {"encoder_hidden_size_list": [32]},
        "learn": {"update_per_collect": 4, "target_update_freq": 50, "learning_rate": 2e-3},
        "collect": {"n_sample": 64},
        "eval": {"evaluator": {"eval_freq": 100}},
        "other": {
            "eps": {"type": "linear", "decay": 3000},
            "replay_buffer": {"type": "naive", "storage": {"type": "array", "next_of": "obs"}},
        },
    },
    "system": {"max_env_steps": 20_000, "torch_threads": 1},
}
BRIEF = ("policy.learn.learner.train_iterations=30", "env.stop_value=2")


@pytest.mark.slow
@pytest.mark.parametrize("is_dict", [False, True])
def test_dqn_solves_a_game_from_its_picture(is_dict: bool, tmp_path: Any) -> None:
    sets = (f"env.kwargs.is_dict={str(is_dict).lower()}",)
    result = train(CATCH, sets=sets, env=Catch, output=tmp_path)

    assert result.reason == "stop_value"


class Watched(DQNPolicy):
    """Records the types of the observations that it was trained on."""

    dtypes: ClassVar[set[Any]] = set()

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.dtypes.update((batch["obs"].dtype, batch["next_obs"].dtype))
        return super().learn(batch)


def test_pictures_stay_bytes_until_they_are_trained_on(tmp_path: Any) -> None:
    config = {**CATCH, "policy": {**CATCH["policy"], "type": "Watched"}}

    train(config, sets=BRIEF, env=Catch, policy=Watched, output=tmp_path)

    assert Watched.dtypes == {torch.uint8}


class Counted(DQNPolicy):
    """Counts the actions that it chose for the collectors."""

    chosen = 0

    def act(self, obs: Any, env_ids: Any = None, *, explore: bool, **options: Any) -> Any:
        type(self).chosen += len(env_ids) if explore else 0
        return super().act(obs, env_ids, explore=explore, **options)


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_policy_does_not_act_in_the_random_env_steps(mode: Any, tmp_path: Any) -> None:
    sets = ("policy.random_collect_size=96", "system.max_env_steps=240", "env.stop_value=2")
    sets = (*sets, "policy.collect.n_sample=24", "policy.eval.evaluator.eval_freq=null")
    Counted.chosen = 0

    result = train(CATCH, mode, sets=sets, env=Catch, policy=Counted, output=tmp_path)

    drawn = result.env_steps - Counted.chosen
    assert 96 <= drawn < result.env_steps
    if mode == "serial":  # it looks before each collect, which has a few steps more for nstep
        assert drawn < 96 + 24 + 8
