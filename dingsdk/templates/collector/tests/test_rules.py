"""The collector follows the rules of all collectors, and collects more in later iterations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from dingsdk_plugin_name import PluginNameCollector

from dingsdk.envs import InProcessEnvManager
from dingsdk.policy import DQNPolicy
from dingsdk.testing import CollectorContract


class TestRules(CollectorContract):
    capabilities = PluginNameCollector.contract_capabilities

    def make_collector(self, *args: Any) -> PluginNameCollector:
        return PluginNameCollector(*args)


def test_more_is_collected_later(tmp_path: Path) -> None:
    section = {"model": {"obs_shape": 4, "action_shape": 2}, "collect": {"n_sample": 8}}
    policy = DQNPolicy(section, seed=0).collect_mode
    env = InProcessEnvManager({}, [partial(gymnasium.make, "CartPole-v1")] * 2)
    env.launch()
    collector = PluginNameCollector({"growth": 0.5}, env, policy, exp_name=str(tmp_path))

    counts = [len(collector.collect(train_iter=at, policy_kwargs={"eps": 1})) for at in (0, 1000)]
    collector.close()

    assert counts == [8, 12]
