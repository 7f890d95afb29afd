"""Every policy passes the contract, also with a network of its own or without the base class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from dingsdk.policy import (
    MLP,
    BasePolicy,
    DQNPolicy,
    PPOPolicy,
    R2D2Policy,
    RecurrentQNetwork,
    SACPolicy,
)
from dingsdk.testing import PolicyContract, Rule

from ..foreign_policy import ForeignPolicy
from .cases import Case, each_rule

VECTOR, THREE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
BATCHED = frozenset({"seeded", "batched", "per_step"})
MODEL = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [16]}


class NormDQN(DQNPolicy):
    def make_network(self) -> nn.Module:
        count = self.section.model.action_count
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, count))


class WidePPO(PPOPolicy):
    def make_network(self) -> Any:
        network = super().make_network()
        network.critic = MLP([network.encoder.width, 96, 1], is_tanh=True)
        return network


class SmallR2D2(R2D2Policy):
    def make_network(self) -> RecurrentQNetwork:
        return RecurrentQNetwork(4, self.section.model.action_count, [8], 6)


def foreign(enable_field: Sequence[str] | None, seed: int) -> ForeignPolicy:
    return ForeignPolicy(None, enable_field, seed)


def policy(
    cls: Any,
    capabilities: Collection[str] = BATCHED,
    *,
    observation: spaces.Space[Any] = VECTOR,
    action: spaces.Space[Any] = THREE,
    slow: bool = False,
    **cfg: Any,
) -> Case:
    def make(enable_field: Sequence[str] | None, seed: int) -> Any:
        model = {**cls.model_from_spaces(observation, action), "encoder_hidden_size_list": [16]}
        own = {"model": {**model, **cfg.get("model", {})}}
        return cls({**cfg, **own}, enable_field=enable_field, seed=seed)

    return of_spaces(make, capabilities, observation, action, slow)


def of_spaces(
    make: Any, capabilities: Collection[str], observation: Any, action: Any, slow: bool = False
) -> Case:
    also = {"observation_space": observation, "action_space": action}
    return Case(PolicyContract, lambda _: make, capabilities, slow, also=also)


IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
PLACES = spaces.Dict(
    {
        "place": spaces.Discrete(5),
        "inner": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "on": spaces.MultiBinary(3)}),
    }
)
NESTED = {"speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(5)}
VIEW = spaces.Dict({"image": IMAGE, "nested": spaces.Dict(NESTED)})
HALF_BOUNDED = spaces.Box(np.float32([-0.1, -np.inf]), np.float32([0.1, np.inf]))
UNEVEN = spaces.Box(np.array([-2, 0.5], np.float32), np.array([2, 0.6], np.float32))
SEEDED = frozenset({"seeded", "batched"})
CASES: Mapping[str, Case] = {
    "dqn": policy(DQNPolicy),
    "dqn_prioritized": policy(DQNPolicy, priority=True, nstep=3, model={"dueling": True}),
    "dqn_images": policy(DQNPolicy, observation=IMAGE, nstep=2),
    "dqn_dicts": policy(DQNPolicy, observation=PLACES),
    "dqn_own_network": policy(NormDQN, SEEDED),
    "r2d2": policy(
        R2D2Policy,
        SEEDED,
        priority=True,
        nstep=2,
        learn={"sequence_length": 4, "burn_in": 2},
        other={"replay_buffer": {"type": "advanced"}},
    ),
    "r2d2_own_network": policy(SmallR2D2, SEEDED, **R2D2Policy.contract_config),
    "ppo": policy(PPOPolicy),
    "ppo_multi_discrete": policy(
        PPOPolicy,
        action=spaces.MultiDiscrete([3, 2, 4]),
        learn={"value_clip": True, "target_kl": 0.01},
    ),
    "ppo_continuous": policy(PPOPolicy, observation=VIEW, action=HALF_BOUNDED),
    "ppo_own_network": policy(WidePPO, SEEDED),
    "ppo_recurrent": policy(
        PPOPolicy,
        model={"recurrent": "lstm", "recurrent_size": 8},
        learn={"sequence_len": 4, "batch_size": 8},
    ),
    "ppo_recurrent_continuous": policy(
        PPOPolicy,
        observation=VIEW,
        action=HALF_BOUNDED,
        slow=True,
        model={"recurrent": "gru", "recurrent_size": 8},
    ),
    "sac": policy(SACPolicy, action=UNEVEN, random_collect_size=50),
    "sac_prioritized": policy(
        SACPolicy,
        action=UNEVEN,
        priority=True,
        nstep=3,
        learn={"auto_alpha": False, "alpha": 0.2},
    ),
    "policy_without_the_base_class": of_spaces(foreign, {"seeded", "per_step"}, VECTOR, THREE),
}


@each_rule(CASES)
def test_policy_follows_the_rule(case: Case, rule: Rule, tmp_path: Path) -> None:
    case.check(rule, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("policy_class", "part", "shape"),
    [(NormDQN, "1.weight", [8]), (WidePPO, "critic.0.weight", [96, 4])],
)
def test_policy_trains_the_network_of_its_subclass(
    policy_class: type[BasePolicy], part: str, shape: list[int]
) -> None:
    policy = policy_class({"model": MODEL})
    assert list(policy.learn_mode.state_dict()["model"][part].shape) == shape


def test_recurrent_state_has_the_size_of_the_own_network() -> None:
    policy = SmallR2D2({"model": MODEL})
    assert policy.state_size == 12
