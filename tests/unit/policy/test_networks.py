from __future__ import annotations

import pytest
import torch
from torch import nn

from dingsdk.policy.distributions import Categorical
from dingsdk.policy.encoders import MLP, make_encoder
from dingsdk.policy.networks import (
    ActorCritic,
    QNetwork,
    RecurrentActorCritic,
    RecurrentQNetwork,
    flatten_parameters,
    frozen,
)


@pytest.mark.parametrize("ends_active", [False, True])
def test_activation_follows_hidden_layers_and_optionally_the_last(ends_active: bool) -> None:
    mlp = MLP([2, 3, 2], is_tanh=True, ends_active=ends_active)
    inputs = torch.randn(4, 2)

    expected = mlp.layers[1](torch.tanh(mlp.layers[0](inputs)))

    torch.testing.assert_close(mlp(inputs), torch.tanh(expected) if ends_active else expected)


def test_dueling_advantages_have_mean_zero() -> None:
    network = QNetwork(3, 4, [8], dueling=True)
    obs = torch.randn(5, 3)
    named = network.state_dict()
    hidden = torch.relu(obs @ named["encoder.0.weight"].T + named["encoder.0.bias"])
    state_value = hidden @ named["value.weight"].T + named["value.bias"]

    torch.testing.assert_close(network(obs).mean(1, keepdim=True), state_value)


def test_network_without_hidden_layers_is_linear() -> None:
    network = QNetwork(3, 2, [])

    assert list(network.state_dict()) == ["head.weight", "head.bias"]
    torch.testing.assert_close(network(torch.zeros(1, 3)), network.head.bias[None])


def test_hidden_layers_have_64_units_by_default() -> None:
    def shapes(network: nn.Module) -> list[list[int]]:
        return [list(each.shape) for name, each in network.named_parameters() if "weight" in name]

    actions = Categorical([2], is_scalar=True)
    assert shapes(make_encoder(3)) == [[64, 3], [64, 64]]
    assert shapes(QNetwork(3, 2)) == [[64, 3], [64, 64], [2, 64]]
    assert shapes(ActorCritic(3, actions)) == [
        *([64, 3], [64, 64], [2, 64]),
        *([64, 3], [64, 64], [1, 64]),
    ]
    recurrent = RecurrentQNetwork(3, 2)
    assert recurrent.state_size == 2 * 64
    assert shapes(recurrent) == [[64, 3], [64, 64], [4 * 64, 64], [4 * 64, 64], [2, 64]]
    assert QNetwork(3, 2).value is None
    assert recurrent.heads.value is None


def tanh_layers(*layers: nn.Linear, ends_active: bool = False) -> nn.Sequential:
    """Return the layers with tanh in between, and after the last one if ``ends_active``."""
    modules = [module for layer in layers for module in (layer, nn.Tanh())]
    return nn.Sequential(*(modules if ends_active else modules[:-1]))


def test_actor_and_critic_are_separate_tanh_layers() -> None:
    network, obs = ActorCritic(3, Categorical([2], is_scalar=True), [5, 4]), torch.randn(6, 3)
    for layer in [*network.actor.layers, *network.critic.layers]:
        nn.init.normal_(layer.bias)

    outputs, value = network(obs)

    torch.testing.assert_close(outputs, tanh_layers(*network.actor.layers)(obs))
    torch.testing.assert_close(value, tanh_layers(*network.critic.layers)(obs).squeeze(1))


def test_layers_after_convolutions_are_tanh_layers() -> None:
    network = ActorCritic([6, 6, 3], Categorical([2], is_scalar=True), [5, 4])
    images = torch.rand(2, 6, 6, 3)
    features = network.encoder.features(images)
    hidden = tanh_layers(*network.encoder.layers.layers, ends_active=True)(features)

    outputs, value = network(images)

    torch.testing.assert_close(outputs, network.actor.layers[0](hidden))
    torch.testing.assert_close(value, network.critic.layers[0](hidden).squeeze(1))


def test_hidden_layers_before_a_recurrent_one_are_tanh_layers() -> None:
    network = RecurrentActorCritic(3, Categorical([2], is_scalar=True), [5, 4], "gru", 6)
    obs, state = torch.randn(7, 3), torch.randn(7, 6)
    hidden = tanh_layers(*network.encoder.layers, ends_active=True)(obs)
    after = network.recurrent(hidden[None], state[None])[0][0]

    outputs, value, last = network(obs, state)

    torch.testing.assert_close(last, after)
    torch.testing.assert_close(outputs, network.actor.layers[0](after))
    torch.testing.assert_close(value, network.critic.layers[0](after).squeeze(1))


@pytest.mark.parametrize("kind", ["plain", "image", "gru"])
def test_actor_and_critic_start_with_scaled_orthogonal_weights(kind: str) -> None:
    actions = Categorical([3, 2], is_scalar=False)
    if kind == "gru":
        network: nn.Module = RecurrentActorCritic(4, actions, [8], "gru", 6)
    else:
        network = ActorCritic([6, 6, 3] if kind == "image" else 4, actions, [8])
    heads = network.actor.layers[-1], network.critic.layers[-1]
    gains = dict(zip(map(id, heads), (0.01, 1.0), strict=True))
    layers = [each for each in network.modules() if isinstance(each, nn.Linear | nn.Conv2d)]

    for layer in layers:
        assert not layer.bias.any()
        rows = layer.weight.detach().flatten(1)
        rows = rows if rows.shape[0] <= rows.shape[1] else rows.T
        gain = gains.get(id(layer), 2**0.5)
        torch.testing.assert_close(
            rows @ rows.T, gain**2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-5 * gain**2
        )
    assert {id(layer) for layer in layers} > gains.keys()


def test_frozen_module_shares_the_weights_and_records_no_gradients() -> None:
    network = QNetwork(3, 2, [5], dueling=True)
    flat = flatten_parameters(network)
    acting = frozen(network)
    obs = torch.randn(4, 3)

    flat.mul_(2)

    torch.testing.assert_close(acting(obs), network(obs).detach())
    assert not acting(obs).requires_grad
    assert network(obs).requires_grad
