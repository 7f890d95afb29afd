"""The wrapper follows the rules, returns an env that workers can use, and changes its rewards."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from dingsdk_plugin_name import PluginNameWrapper

from dingsdk.envs import check_env
from dingsdk.errors import ConfigError
from dingsdk.testing import EnvWrapperContract


class TestRules(EnvWrapperContract):
    capabilities = PluginNameWrapper.contract_capabilities
    env_id = PluginNameWrapper.contract_env

    def make_wrapper(self, env: Any) -> PluginNameWrapper:
        return PluginNameWrapper(env, cost=0.25)


def test_wrapped_env_can_be_used() -> None:
    found = check_env(wrapped)

    assert [each for each in found if each.state == "problem"] == []


def wrapped() -> PluginNameWrapper:
    return PluginNameWrapper(gymnasium.make("CartPole-v1"), cost=0.25)


def test_each_step_costs() -> None:
    env = wrapped()
    env.reset(seed=0)

    assert env.step(0)[1] == 0.75


def test_negative_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="cost -1"):
        PluginNameWrapper(gymnasium.make("CartPole-v1"), cost=-1)
