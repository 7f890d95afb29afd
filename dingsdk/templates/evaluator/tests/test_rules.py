"""The evaluator follows the rules of all evaluators, and reports its quantile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from dingsdk_plugin_name import PluginNameEvaluator

from dingsdk.envs import InProcessEnvManager
from dingsdk.policy import DQNPolicy
from dingsdk.testing import EvaluatorContract


class TestRules(EvaluatorContract):
    capabilities = PluginNameEvaluator.contract_capabilities

    def make_evaluator(self, *args: Any) -> PluginNameEvaluator:
        return PluginNameEvaluator(*args)


def test_quantile_of_the_returns_is_reported(tmp_path: Path) -> None:
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}}, seed=0).eval_mode
    env = InProcessEnvManager({}, [partial(gymnasium.make, "CartPole-v1")] * 2)
    env.seed(0)
    env.launch()
    section = {"n_episode": 6, "quantile": 0.5}
    evaluator = PluginNameEvaluator(section, env, policy, exp_name=str(tmp_path))

    _, info = evaluator.eval()
    evaluator.close()

    assert info["eval_episode_return_low"] == np.median(info["eval_episode_return"])
