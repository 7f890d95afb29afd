from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from dingsdk.errors import SchemaMismatchError
from dingsdk.policy.networks import QNetwork


def test_values_are_those_of_the_same_layers_in_torch():
    network = QNetwork(3, 2, [5, 4], seed=1)
    modules = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    for parameter, weight in zip(modules.parameters(), network.state_dict().values(), strict=True):
        parameter.data.copy_(weight)
    obs = torch.randn(6, 3)

    torch.testing.assert_close(network.values(obs), modules(obs).detach())
    torch.testing.assert_close(network.values_with_grad(obs), modules(obs))


def test_gradients_are_those_of_torch_layers():
    network = QNetwork(3, 2, [5], seed=1)
    modules = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    for parameter, weight in zip(modules.parameters(), network.state_dict().values(), strict=True):
        parameter.data.copy_(weight)
    obs = torch.randn(6, 3)

    modules(obs).square().sum().backward()
    gradients = torch.autograd.grad(network.values_with_grad(obs).square().sum(), network.trainable)

    for parameter, gradient in zip(modules.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_dueling_advantages_have_mean_zero():
    network = QNetwork(3, 4, [8], dueling=True, seed=0)
    obs = torch.randn(5, 3)
    named = network.state_dict()
    hidden = torch.relu(obs @ named["encoder.0.weight"].T + named["encoder.0.bias"])
    state_value = hidden @ named["value.weight"].T + named["value.bias"]

    torch.testing.assert_close(network.values(obs).mean(1, keepdim=True), state_value)


def test_a_network_without_hidden_layers_is_linear():
    network = QNetwork(3, 2, [], seed=0)

    assert list(network.shapes) == ["head.weight", "head.bias"]
    torch.testing.assert_close(
        network.values(torch.zeros(1, 3)), network.state_dict()["head.bias"][None]
    )


def test_seed_decides_the_weights_and_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()

    first, second, other = (QNetwork(4, 2, seed=seed) for seed in (7, 7, 8))

    assert torch.equal(first.flat, second.flat)
    assert not torch.equal(first.flat, other.flat)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_clone_is_independent():
    network = QNetwork(4, 2, seed=0)
    twin = network.clone()
    network.flat.zero_()

    assert twin.flat.abs().sum() > 0
    assert twin.state_dict()["head.weight"].abs().sum() > 0
    assert twin.trainable[0].abs().sum() > 0


def test_named_weights_survive_safetensors_and_frozen_arrays():
    source, sink = QNetwork(4, 2, seed=0), QNetwork(4, 2, seed=1)
    frozen = {name: tensor.numpy().copy() for name, tensor in source.state_dict().items()}
    for array in frozen.values():
        array.setflags(write=False)

    sink.load_state_dict(frozen)
    assert torch.equal(sink.flat, source.flat)

    sink.flat.zero_()
    sink.load_state_dict(load(save(source.state_dict())))
    assert torch.equal(sink.flat, source.flat)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda state: state.pop("head.bias"), "head.bias"),
        (lambda state: state.update(extra=np.zeros(1)), "extra"),
        (lambda state: state.update({"head.bias": np.zeros(3, np.float32)}), "head.bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_changes(change, key):
    network = QNetwork(4, 2, seed=0)
    before = network.flat.clone()
    state = {name: tensor.clone() + 1 for name, tensor in network.state_dict().items()}
    change(state)

    with pytest.raises(SchemaMismatchError, match=key) as caught:
        network.load_state_dict(state)

    assert caught.value.facts["key"] == key
    assert torch.equal(network.flat, before)
