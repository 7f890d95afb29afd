from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from dingsdk.errors import NonFiniteError, SchemaMismatchError
from dingsdk.policy import Adam


def test_clipping_and_eps_work_as_in_torch() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), torch.ones(4, 3)
    twin = copy.deepcopy(net)
    own = Adam(net, 1e-2, 0.5, eps=0.1)
    theirs = torch.optim.Adam(twin.parameters(), 1e-2, eps=0.1)

    for scale in (0.01, 100.0):  # the small gradient is not clipped
        norm = own.minimize(scale * net(x).square().mean())
        theirs.zero_grad()
        (scale * twin(x).square().mean()).backward()
        expected = nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        theirs.step()
        assert norm == own.gradient_norm == pytest.approx(float(expected))

    torch.testing.assert_close(net.weight, twin.weight)
    assert own.updates == 2


@pytest.mark.parametrize("key", ["step", "exp_avg", "exp_avg_sq"])
def test_state_of_other_parameters_changes_nothing(key: str) -> None:
    adam = Adam(nn.Linear(3, 2), 1e-2)
    adam.step(torch.ones(8))
    before = copy.deepcopy(adam.state_dict())
    other = {"step": 9, "exp_avg": torch.zeros(8), "exp_avg_sq": torch.zeros(8)}

    with pytest.raises(SchemaMismatchError, match=f"optimizer.*{key}"):
        adam.load_state_dict(other | {key: torch.zeros(7)})

    for name, value in adam.state_dict().items():
        is_tensor = isinstance(value, torch.Tensor)
        assert torch.equal(value, before[name]) if is_tensor else value == before[name]


def test_scale_rate_multiplies_the_initial_learning_rate() -> None:
    adam = Adam(nn.Linear(3, 2), 0.5)
    for factor in (0.5, 0.1):
        adam.scale_rate(factor)
        assert adam.learning_rate == 0.5 * factor
    before = adam.flat.clone()
    adam.step(torch.ones(8))
    torch.testing.assert_close(before - adam.flat, torch.full((8,), 0.05))  # the first step


@pytest.mark.parametrize("is_loss", [True, False])
def test_rank_refuses_an_update_that_is_not_finite_on_another_rank(is_loss: bool) -> None:
    adam = Adam(nn.Linear(3, 2), 1e-2)
    before = adam.flat.clone()

    def average(joined: torch.Tensor) -> None:
        joined[-1 if is_loss else 0] = math.nan

    adam.average = average
    with pytest.raises(NonFiniteError, match=r"update 0: .*the values diverge") as caught:
        adam.descend(torch.tensor(3.0), torch.ones(8))
    assert (caught.value.facts["key"], caught.value.facts["update"]) == ("total_loss", 0)
    assert torch.equal(adam.flat, before)
    assert (adam.updates, adam.gradient_norm) == (0, 0.0)


def test_error_names_weights_that_are_not_finite() -> None:
    net = nn.Linear(3, 2)
    adam = Adam(net, 1e-2)
    adam.flat[3] = math.inf
    with pytest.raises(NonFiniteError, match="the weights hold NaN or infinity"):
        adam.minimize(net(torch.ones(1, 3)).sum())


@pytest.mark.parametrize("given", [torch.ones(()), torch.ones(7), torch.ones(8).double()])
def test_loss_or_another_vector_in_place_of_the_gradient_is_refused(given: torch.Tensor) -> None:
    net = nn.Linear(3, 2)
    before = net.weight.detach().clone()
    adam = Adam(net, 1e-2)

    with pytest.raises(SchemaMismatchError, match=r"minimize\(loss\)"):
        adam.step(given)

    assert adam.updates == 0
    assert torch.equal(net.weight, before)
