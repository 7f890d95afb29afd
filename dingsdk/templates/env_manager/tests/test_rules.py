"""The env manager follows the rules of all env managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from dingsdk_plugin_name import PluginNameEnvManager

from dingsdk.testing import EnvManagerContract


class TestSameStep(EnvManagerContract):
    capabilities = PluginNameEnvManager.contract_capabilities

    def make_manager(
        self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
    ) -> PluginNameEnvManager:
        return PluginNameEnvManager(cfg, env_fns)


class TestNextStep(TestSameStep):
    def make_manager(
        self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]
    ) -> PluginNameEnvManager:
        return PluginNameEnvManager({"autoreset_mode": "next_step", **cfg}, env_fns)


def test_envs_are_stepped_in_columns() -> None:
    manager = PluginNameEnvManager({}, [partial(gymnasium.make, "CartPole-v1")] * 3)
    manager.seed(0)
    with manager:
        manager.launch()
        step = manager.step_batch(np.zeros(3, np.int64))

    assert step.obs.shape == (3, 4)
    assert step.reward.tolist() == [1.0, 1.0, 1.0]
