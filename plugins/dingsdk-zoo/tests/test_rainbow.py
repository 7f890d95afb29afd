"""Rainbow: projection, noise and loss against numbers computed by hand, and the contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_zoo.rainbow import NoisyLinear, RainbowPolicy, project

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError

MODEL = {
    "obs_shape": 4,
    "action_shape": 2,
    "encoder_hidden_size_list": [16],
    "atom_count": 3,
    "v_min": 0.0,
    "v_max": 2.0,
    "dueling": False,
}


def make(learn: Mapping[str, Any] | None = None, **model: Any) -> Any:
    return RainbowPolicy({"model": {**MODEL, **model}, "learn": learn or {}}, seed=0)


def with_logits(policy: Any, part: str, *logits: float) -> None:
    """Make a network return the same logits for all observations, without noise."""
    last = policy.state()[part].streams[1]
    for parameter in (last.weight, last.weight_sigma, last.bias_sigma):
        parameter.data.zero_()
    last.bias.data.copy_(torch.tensor(logits))


def row(**columns: float) -> SampleBatch:
    """Return a batch of one sample with action 0."""
    obs = np.zeros((1, 4), np.float32)
    found = {"obs": obs, "next_obs": obs, "action": np.array([0]), "done": np.array([False])}
    return SampleBatch(
        {**found, **{name: np.array([each], np.float32) for name, each in columns.items()}}
    )


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        # 1 and 3 become 1 and 2, then 0.75 and 1.75, each shared by its two neighbours.
        (0.5, 0.5, [0.0, 0.5, 0.5, 0.0, 0.0]),
        (0.25, 0.5, [0.125, 0.5, 0.375, 0.0, 0.0]),
        (9.0, 0.0, [0.0, 0.0, 0.0, 0.0, 1.0]),
        (-1.0, 0.0, [1.0, 0.0, 0.0, 0.0, 0.0]),
        (1.0, 1.0, [0.0, 0.0, 0.5, 0.0, 0.5]),
    ],
)
def test_projection_shares_each_probability_between_neighbours(
    reward: float, discount: float, expected: list[float]
) -> None:
    probs, support = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]), torch.linspace(0, 4, 5)

    found = project(probs, torch.tensor([reward]), torch.tensor([discount]), support)

    assert found[0].tolist() == pytest.approx(expected)


def test_noise_is_factorised() -> None:
    layer = NoisyLinear(2, 1, sigma=0.5)
    layer.weight.data.copy_(torch.tensor([[1.0, 2.0]]))
    layer.bias.data.copy_(torch.tensor([3.0]))
    layer.weight_sigma.data.copy_(torch.tensor([[0.5, 0.25]]))
    layer.bias_sigma.data.copy_(torch.tensor([0.1]))
    inputs = torch.tensor([[1.0, 2.0]])

    # f(4, -9, 1) = (2, -3, 1): weights 1 + 0.5 * 2 and 2 - 0.25 * 3, bias 3 + 0.1.
    assert layer(inputs, torch.tensor([4.0, -9.0, 1.0])).item() == pytest.approx(2 + 2.5 + 3.1)
    assert layer(inputs).item() == pytest.approx(8.0)


def test_noisy_layer_begins_as_in_the_paper() -> None:
    layer = NoisyLinear(4, 1000, sigma=0.5)

    assert set(layer.weight_sigma.flatten().tolist()) == {0.25}
    assert set(layer.bias_sigma.tolist()) == {0.25}
    for means in (layer.weight.detach(), layer.bias.detach()):
        assert 0.49 < float(means.abs().max()) <= 0.5
        assert float(means.std()) == pytest.approx(1 / math.sqrt(12), rel=0.1)


def test_loss_is_the_divergence_from_the_projected_target() -> None:
    policy = make({"target_update_freq": 1000})
    with_logits(policy, "model", 0, 0, 0, 0, 0, 0)

    log = policy.learn_mode.forward(row(reward=1.0, discount=0.0, IS=0.5))

    # The target is certain, and had a probability of a third.
    assert log["priority"] == pytest.approx([math.log(3)])
    assert log["total_loss"] == pytest.approx(0.5 * math.log(3))
    assert (log["q_value"], log["target_q_value"]) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(("double", "loss"), [(False, math.log(3)), (True, math.log(1.5))])
def test_double_estimate_lets_the_trained_network_choose(double: bool, loss: float) -> None:
    policy = make({"double": double, "target_update_freq": 1000})
    with_logits(policy, "model", 0, 0, 0, 100, 0, 0)  # means 1 and 0
    with_logits(policy, "target_model", 0, 0, 0, 0, 0, 100)  # means 1 and 2

    # Action 1 is 2 for certain, so 1 after the discount. The returns 0, 1, 2 of action 0 become
    # 0, 0.5, 1, with the probabilities a half of 0 and a half of 1.
    log = policy.learn_mode.forward(row(reward=0.0, discount=0.5))

    assert log["total_loss"] == pytest.approx(loss, rel=1e-5)


def test_only_exploration_is_noisy() -> None:
    policy = make()
    network, obs = policy.state()["model"], torch.ones(3, 4)

    def values(explore: bool) -> Any:
        return policy.action_values(network, obs, explore=explore)

    assert torch.equal(values(False), values(False))
    assert not torch.equal(values(True), values(True))
    assert policy.command_mode.get_setting_collect({"envstep": 0}) == {"eps": 0.0}


def test_noise_of_an_update_reaches_the_deviations() -> None:
    policy = make()
    before = policy.state()["model"].streams[0].weight_sigma.detach().clone()

    policy.learn_mode.forward(row(reward=1.0, discount=0.0).with_columns(obs=np.ones((1, 4), "f4")))

    assert not torch.equal(policy.state()["model"].streams[0].weight_sigma, before)


@pytest.mark.parametrize(
    "model", [{"v_min": 2.0}, {"encoder_hidden_size_list": []}, {"atom_count": 1}]
)
def test_models_that_cannot_work_are_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(model))):
        make(**model)
