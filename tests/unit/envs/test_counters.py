"""Returns, failure counts and rows without a transition, after resets, failures and restarts."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dingsdk.envs import BaseVectorEnvManager, EnvManager, create_env_manager, make_env_fns

RAISE = 1
NATIVE = {"type": "vector", "vectorization_mode": "native"}
every_native_env = pytest.mark.parametrize("env", ["Native", "NativeSameStep", "NativeDisabled"])


def make(env: str, n: int = 2) -> EnvManager:
    return create_env_manager(NATIVE, make_env_fns({"env_id": f"Tiny/{env}-v0"}, n))


class Careless(gym.vector.VectorEnv[Any, Any, Any]):
    """Gives ``reward`` in the steps that are resets, and reports an end in every step."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int, reward: float) -> None:
        self.num_envs, self.reward = num_envs, reward

    def reset(self, **_: Any) -> Any:
        self.is_over = False
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        reward = np.full(self.num_envs, self.reward if self.is_over else 1.0)
        self.is_over = not self.is_over
        ended = np.full(self.num_envs, True)
        return np.zeros((self.num_envs, 2), np.float32), reward, ended, ended.copy(), {}


class CarelessManager(BaseVectorEnvManager):
    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        rewards_nan: bool = False

    def make_vector_env(self) -> Any:
        return Careless(self.env_num, np.nan if self.section.rewards_nan else 7.0)


@pytest.mark.parametrize(
    "cfg", [{}, {"rewards_nan": True}, {"rewards_nan": True, "episode_num": 1}]
)
def test_rows_without_a_transition_have_no_reward_and_no_end(cfg: dict[str, Any]) -> None:
    with CarelessManager(cfg, [gym.Env] * 2) as manager:
        manager.launch()
        assert manager.step_batch(np.zeros(2, int)).reward.tolist() == [1.0, 1.0]
        columns = manager.step_batch(np.zeros(2, int))
        assert columns.valid.tolist() == [False, False]  # type: ignore[union-attr]
        assert columns.reward.tolist() == [0.0, 0.0]
        assert not (columns.terminated | columns.truncated).any()
