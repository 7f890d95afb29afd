"""The hook follows the rules, averages a logged value, and refuses unknown arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dingsdk_plugin_name import PluginNameHook

from dingsdk.data import SampleBatch
from dingsdk.errors import UnknownKeyError
from dingsdk.policy import DQNPolicy
from dingsdk.testing import LearnerHookContract
from dingsdk.worker import BaseLearner


class TestRules(LearnerHookContract):
    capabilities = PluginNameHook.contract_capabilities

    def make_hook(
        self, name: str, priority: float, *, position: str, ext_args: Mapping[str, Any]
    ) -> PluginNameHook:
        return PluginNameHook(name, priority, position=position, ext_args=ext_args)


def batch() -> SampleBatch:
    rows = {"obs": np.ones((4, 2), np.float32), "next_obs": np.ones((4, 2), np.float32)}
    numbers = {"reward": np.ones(4, np.float32), "discount": np.ones(4, np.float32)}
    return SampleBatch({**rows, **numbers, "action": np.zeros(4, np.int64)})


def test_hook_follows_the_loss_of_a_learner(tmp_path: Path) -> None:
    policy = DQNPolicy({"model": {"obs_shape": 2, "action_shape": 2}}, seed=0).learn_mode
    hook = PluginNameHook("smooth", 10, position="after_iter", ext_args={"weight": 0.5})
    learner = BaseLearner({}, policy, exp_name=str(tmp_path))
    learner.register_hook(hook)
    losses = []

    class Record(PluginNameHook):
        def __call__(self, engine: BaseLearner) -> None:
            losses.append(float(engine.log_vars["total_loss"]))

    learner.register_hook(Record("record", 5, position="after_iter"))
    for _ in range(3):
        learner.train(batch(), 0)
    learner.close()

    assert hook.average == pytest.approx(0.25 * losses[0] + 0.25 * losses[1] + 0.5 * losses[2])


def test_resumed_hook_continues_its_average(tmp_path: Path) -> None:
    policy = DQNPolicy({"model": {"obs_shape": 2, "action_shape": 2}}, seed=0).learn_mode
    hooks, state = [], None
    for _ in range(2):
        learner = BaseLearner({}, policy, exp_name=str(tmp_path))
        hooks.append(PluginNameHook("smooth", 10, position="after_iter", ext_args={}))
        learner.register_hook(hooks[-1])
        if state is None:
            learner.train(batch(), 0)
            state = learner.state_dict()
        else:
            learner.load_state_dict(state)
        learner.close()

    assert hooks[1].average == hooks[0].average


def test_misspelt_argument_is_refused() -> None:
    with pytest.raises(UnknownKeyError, match="wieght"):
        PluginNameHook("smooth", 10, position="after_iter", ext_args={"wieght": 0.5})
