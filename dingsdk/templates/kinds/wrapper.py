"""An env wrapper that subtracts a cost from each reward.

A wrapper is a class or function that takes an env and returns an env, as in gymnasium. A config lists the
wrappers with their arguments, the innermost first. The envs of evaluations have the wrapper too, unless its
section has `evaluate: false`, or its class has `training_only = True` and the section says nothing. If it
changes observations or actions, change `observation_space` or `action_space` too. `dingsdk check` wraps the
env `contract_env` (an id, or a section `env`), with the arguments `contract_config`.

    env:
      wrappers:
        - type: plugin_name
          cost: 0.1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
from dingsdk.errors import ConfigError


class PluginNameWrapper(gymnasium.RewardWrapper[Any, Any]):
    """Subtracts ``cost`` from the reward of each step.

    Args:
        env: The env to wrap.
        cost: The cost of a step, >= 0.

    Raises:
        ConfigError: the cost is negative.
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"repeatable"})
    contract_env: ClassVar[str] = "CartPole-v1"
    contract_config: ClassVar[Mapping[str, Any]] = {"cost": 0.1}

    def __init__(self, env: gymnasium.Env[Any, Any], cost: float = 0.01) -> None:
        super().__init__(env)
        if not cost >= 0:
            raise ConfigError(f"plugin_name: cost is {cost}, not a number >= 0")
        self.cost = cost

    def reward(self, reward: Any) -> float:
        """Return the reward minus the cost."""
        return float(reward) - self.cost
