"""QR-DQN: its loss against numbers computed by hand, the contract, and short runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_zoo.qrdqn import QRDQNPolicy, quantile_huber_losses

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError

MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "quantile_count": 2}


def make(learn: Mapping[str, Any] | None = None, **cfg: Any) -> Any:
    model = {**MODEL, **cfg.pop("model", {})}
    return QRDQNPolicy({"model": model, "learn": learn or {}, **cfg}, seed=0)


def with_quantiles(policy: Any, part: str, *quantiles: float) -> None:
    """Make a network return the same quantiles for all observations, action after action."""
    head = policy.state()[part].head
    head.weight.data.zero_()
    head.bias.data.copy_(torch.tensor(quantiles))


def row(**columns: Any) -> SampleBatch:
    """Return a batch of one sample: action 0, a reward of 1 and a discount of 0.5."""
    obs = np.zeros((1, 4), np.float32)
    found = {"obs": obs, "next_obs": obs, "action": np.array([0]), "done": np.array([False])}
    numbers = {"reward": 1.0, "discount": 0.5, **columns}
    return SampleBatch(
        {**found, **{name: np.array([each], np.float32) for name, each in numbers.items()}}
    )


def test_quantile_huber_loss_is_that_of_the_paper() -> None:
    quantiles, targets = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 3.0]])

    # Quantile 0.25 at 0: errors 0.5 and 3; quantile 0.75 at 1: errors -0.5 and 2.
    first = (0.25 * 0.125 + 0.25 * 2.5) / 2
    second = (0.25 * 0.125 + 0.75 * 1.5) / 2
    found = quantile_huber_losses(quantiles, targets, kappa=1.0)
    assert found.tolist() == pytest.approx([first + second])
    # With kappa 2 the error of 3 costs 2 * (3 - 1), and the error of 2 its half square.
    wide = (0.25 * 0.125 + 0.25 * 4) / 2 + (0.25 * 0.125 + 0.75 * 2) / 2
    assert float(quantile_huber_losses(quantiles, targets, kappa=2.0)) == pytest.approx(wide)


@pytest.mark.parametrize(("double", "loss", "target"), [(False, 7.25, 8.5), (True, 0.125, 1.0)])
def test_update_equals_the_numbers_computed_by_hand(
    double: bool, loss: float, target: float
) -> None:
    policy = make({"double": double, "target_update_freq": 1000}, priority=True)
    with_quantiles(policy, "model", 0.0, 1.0, 2.0, 4.0)  # prefers action 1
    with_quantiles(policy, "target_model", 10.0, 20.0, 0.0, 0.0)  # prefers action 0

    # Targets are 1 + 0.5 * (10, 20) by the target network, and 1 + 0.5 * (0, 0) if double.
    log = policy.learn_mode.forward(row(IS=1.0))

    assert log["total_loss"] == pytest.approx(loss)
    assert (log["q_value"], log["target_q_value"]) == pytest.approx((0.5, target))
    assert log["priority"] == pytest.approx([target - 0.5])


def test_importance_weights_scale_the_loss_and_ends_have_no_bootstrap() -> None:
    policy = make(priority=True)
    with_quantiles(policy, "model", 0.0, 1.0, 2.0, 4.0)

    log = policy.learn_mode.forward(row(IS=0.5, discount=0.0))

    assert log["target_q_value"] == pytest.approx(1.0)
    assert log["total_loss"] == pytest.approx(0.5 * 0.125)


def test_action_has_the_largest_mean_and_counts_from_the_first_one() -> None:
    policy = make(model={"action_start": 5})
    with_quantiles(policy, "model", 2.0, 2.0, -1.0, 6.0)
    obs = np.zeros((1, 4), np.float32)

    assert policy.eval_mode.forward_batch(obs, [0])["action"].tolist() == [6]
    batch = row(discount=0.0).with_columns(action=np.array([6]))
    assert policy.learn_mode.forward(batch)["q_value"] == pytest.approx(2.5)


def test_dueling_network_adds_value_and_advantage_of_each_quantile() -> None:
    network = make(model={"dueling": True}).state()["model"]
    for layer in (network.head, network.value):
        layer.weight.data.zero_()
    network.head.bias.data.copy_(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    network.value.bias.data.copy_(torch.tensor([10.0, 20.0]))

    # The mean advantages of the two quantiles are 2 and 4.
    assert network.quantiles(torch.zeros(1, 4)).tolist() == [[[9.0, 18.0], [11.0, 22.0]]]


def test_other_losses_are_refused() -> None:
    with pytest.raises(ConfigError, match="loss"):
        make({"loss": "mse"})
