from typing import ClassVar

from dingsdk_example_policy import Reinforce
from gymnasium import spaces

from dingsdk.testing import PolicyContract

MODEL = {"obs_shape": 4, "action_shape": 2}


class TestReinforce(PolicyContract):
    observation_space: ClassVar = spaces.Box(-1, 1, (4,))
    action_space: ClassVar = spaces.Discrete(2)
    capabilities = frozenset({"seeded", "batched", "per_step"})

    def make_policy(self, enable_field, seed):
        return Reinforce({"model": MODEL}, enable_field=enable_field, seed=seed)
