"""Discrete SAC: targets and losses, against numbers that were computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_zoo.discrete_sac import DiscreteSACPolicy

from dingsdk.data import SampleBatch

MODEL = {"obs_shape": 1, "action_shape": 2, "action_start": 5, "encoder_hidden_size_list": []}
ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
BATCH = SampleBatch(
    {
        "obs": np.zeros((2, 1), np.float32),
        "action": np.array([5, 6]),
        "reward": np.array([1.0, 2.0], np.float32),
        "next_obs": np.zeros((2, 1), np.float32),
        "discount": np.array([0.5, 0.0], np.float32),
    }
)


def set_outputs(network: Any, *outputs: list[float]) -> None:
    """Make the networks of a part give these outputs for every observation."""
    for each, values in zip(network, outputs, strict=True):
        each.head.weight.data.zero_()
        each.head.bias.data.copy_(torch.tensor(values))


def make(**learn: Any) -> DiscreteSACPolicy:
    """Return a policy with the probabilities 1/4 and 3/4, and these action values."""
    cfg = {"model": MODEL, "learn": {"alpha": 0.1, **learn}}
    policy = DiscreteSACPolicy(cfg, seed=0)
    set_outputs([policy._actor], [0.0, math.log(3.0)])
    set_outputs(policy._critic.critics, [1.0, 4.0], [2.0, 3.0])
    set_outputs(policy._target.critics, [1.0, 2.0], [3.0, 0.0])
    return policy


def test_losses_are_those_computed_by_hand() -> None:
    log = make(target_entropy=0.3).learn_mode.forward(BATCH)

    # The smaller targets are 1 and 0, so the next value is 1/4 plus 0.1 times the entropy.
    targets = [1 + 0.5 * (0.25 + 0.1 * ENTROPY), 2.0]
    errors = [1 - targets[0], 4 - targets[1]], [2 - targets[0], 3 - targets[1]]
    assert log["target_q_value"] == pytest.approx(sum(targets) / 2)
    expected = sum(0.5 * (one**2 + other**2) / 2 for one, other in errors)
    assert log["critic_loss"] == pytest.approx(expected)
    # After the critics' step of 3e-4 the smaller values still are close to 1 and 3.
    assert log["actor_loss"] == pytest.approx(-0.1 * ENTROPY - (0.25 + 0.75 * 3), abs=1e-3)
    assert log["entropy"] == pytest.approx(ENTROPY)
    assert log["temperature_loss"] == pytest.approx(math.log(0.1) * (ENTROPY - 0.3), rel=1e-5)


def test_actions_are_drawn_by_their_probabilities() -> None:
    policy = make()
    obs = np.zeros((4000, 1), np.float32)

    assert (policy.act(obs, explore=False)["action"] == 6).all()
    assert policy.act(obs, explore=True)["action"].mean() == pytest.approx(5.75, abs=0.03)


def test_default_target_is_nearly_the_largest_entropy() -> None:
    assert make()._target_entropy == pytest.approx(0.98 * math.log(2))


def test_temperature_is_kept_if_it_is_not_trained() -> None:
    policy = make(auto_alpha=False)
    policy.learn_mode.forward(BATCH)

    assert policy._temperature.log_alpha.item() == pytest.approx(math.log(0.1))
