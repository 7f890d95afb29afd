"""Every policy of the zoo passes the contract."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from dingsdk_zoo.appo import APPOPolicy
from dingsdk_zoo.bc import BCPolicy
from dingsdk_zoo.discrete_sac import DiscreteSACPolicy
from dingsdk_zoo.impala import IMPALAPolicy
from dingsdk_zoo.iql import IQLPolicy
from dingsdk_zoo.qrdqn import QRDQNPolicy
from dingsdk_zoo.rainbow import RainbowPolicy
from dingsdk_zoo.td3 import TD3Policy
from gymnasium import spaces

from dingsdk.policy import Policy
from dingsdk.testing import PolicyContract

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
DICT = spaces.Dict(
    {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))}
)
BOX = spaces.Box(np.array([-2, 0.5], np.float32), np.array([2, 0.6], np.float32))


class Zoo(PolicyContract):
    observation_space: ClassVar[spaces.Space[Any]] = VECTOR
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(3, start=2)
    capabilities: ClassVar[Collection[str]] = frozenset({"seeded", "batched", "per_step"})
    cls: ClassVar[Any]
    cfg: ClassVar[Mapping[str, Any]] = {}

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> Policy:
        found = self.cls.model_from_spaces(self.observation_space, self.action_space)
        model = {**found, "encoder_hidden_size_list": [16], **self.cfg.get("model", {})}
        made: Policy = self.cls({**self.cfg, "model": model}, enable_field=enable_field, seed=seed)
        return made


class TestBC(Zoo):
    cls: ClassVar = BCPolicy


class TestIQL(Zoo):
    cls: ClassVar = IQLPolicy


class TestMultiDiscreteIQL(TestIQL):
    action_space: ClassVar = spaces.MultiDiscrete([3, 2])


class TestContinuousIQLOnDicts(TestIQL):
    observation_space: ClassVar = DICT
    action_space: ClassVar = BOX


class TestQRDQN(Zoo):
    cls: ClassVar = QRDQNPolicy
    cfg: ClassVar[Mapping[str, Any]] = {"model": {"quantile_count": 5}}


class TestPrioritizedDuelingQRDQNOnDicts(TestQRDQN):
    observation_space: ClassVar = DICT
    cfg: ClassVar = {
        "priority": True,
        "nstep": 3,
        "model": {"quantile_count": 5, "dueling": True},
    }


class TestRainbow(Zoo):
    cls: ClassVar = RainbowPolicy
    cfg: ClassVar[Mapping[str, Any]] = {
        "model": {"encoder_hidden_size_list": [16, 16], "atom_count": 11}
    }


class TestRainbowOnDicts(TestRainbow):
    observation_space: ClassVar = DICT
    cfg: ClassVar = {"model": {"atom_count": 11, "dueling": False}}


class TestIMPALA(Zoo):
    cls: ClassVar = IMPALAPolicy
    capabilities: ClassVar[Collection[str]] = frozenset({"seeded", "batched"})


class TestContinuousIMPALA(TestIMPALA):
    observation_space: ClassVar = DICT
    action_space: ClassVar = spaces.Box(-1, np.inf, (2, 3))


class TestAPPO(TestIMPALA):
    cls: ClassVar = APPOPolicy


class TestTD3(Zoo):
    cls: ClassVar = TD3Policy
    action_space: ClassVar = BOX
    cfg: ClassVar[Mapping[str, Any]] = {"random_collect_size": 50}


class TestPrioritizedTD3(TestTD3):
    observation_space: ClassVar = DICT
    action_space: ClassVar = spaces.Box(-1, 1, (2, 3))
    cfg: ClassVar = {
        "priority": True,
        "nstep": 3,
        "normalize": {"obs": True, "reward": True},
    }


class TestDiscreteSAC(Zoo):
    cls: ClassVar = DiscreteSACPolicy
    cfg: ClassVar[Mapping[str, Any]] = {"random_collect_size": 50}


@pytest.mark.slow
class TestPrioritizedDiscreteSAC(TestDiscreteSAC):
    observation_space: ClassVar = DICT
    cfg: ClassVar = {"priority": True, "nstep": 3, "learn": {"auto_alpha": False, "alpha": 0.2}}


del Zoo
