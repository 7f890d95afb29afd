"""The policy follows the rules of all policies, and computes its targets by the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from dingsdk_plugin_name import PluginNamePolicy
from gymnasium import spaces

from dingsdk.testing import PolicyContract

MODEL = {"obs_shape": 4, "action_shape": 2}


class TestRules(PolicyContract):
    observation_space: ClassVar = spaces.Box(-1, 1, (4,), np.float32)
    action_space: ClassVar = spaces.Discrete(2)
    capabilities = PluginNamePolicy.contract_capabilities

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> PluginNamePolicy:
        return PluginNamePolicy({"model": MODEL}, enable_field=enable_field, seed=seed)


def test_target_of_a_terminal_step_is_its_reward() -> None:
    policy = PluginNamePolicy({"model": MODEL}, seed=0)
    obs = torch.zeros(2, 4)
    batch = {
        "obs": obs,
        "next_obs": obs,
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, 1.0]),
        "terminated": torch.tensor([True, False]),
    }

    target = policy.target(batch)

    best = policy.net(obs)[1].max()
    assert torch.allclose(target, torch.stack([torch.tensor(1.0), 1 + 0.99 * best]))
