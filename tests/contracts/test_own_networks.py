"""Built-in policies pass the contract with the network of a subclass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import pytest
from torch import nn

from dingsdk.policy import MLP, BasePolicy, DQNPolicy, PPOPolicy, R2D2Policy, RecurrentQNetwork

from .test_policies import MODEL, Discrete


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


class OwnNetwork(Discrete):
    capabilities: ClassVar[Collection[str]] = {"seeded", "batched"}
    policy_class: ClassVar[type[BasePolicy]]

    def make_policy(self, enable_field: Sequence[str] | None, seed: int) -> BasePolicy:
        cfg = {"model": MODEL, **self.cfg}
        return self.policy_class(cfg, enable_field=enable_field, seed=seed)


class TestNormDQN(OwnNetwork):
    policy_class = NormDQN


class TestWidePPO(OwnNetwork):
    policy_class = WidePPO


class TestSmallR2D2(OwnNetwork):
    policy_class = SmallR2D2
    cfg = R2D2Policy.contract_config


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
