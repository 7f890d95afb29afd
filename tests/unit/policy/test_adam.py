from __future__ import annotations

import pytest
import torch
from torch import nn

from dingsdk.errors import SchemaMismatchError
from dingsdk.policy import Adam


def test_minimize_takes_the_step_of_torch() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2), torch.ones(4, 3)
    twin = nn.Linear(3, 2)
    twin.load_state_dict(net.state_dict())
    own, theirs = Adam(net, 1e-2), torch.optim.Adam(twin.parameters(), 1e-2)

    for _ in range(3):
        own.minimize(net(x).square().mean())
        theirs.zero_grad()
        twin(x).square().mean().backward()
        theirs.step()

    torch.testing.assert_close(net.weight, twin.weight)


@pytest.mark.parametrize("given", [torch.ones(()), torch.ones(7), torch.ones(8).double()])
def test_loss_or_another_vector_in_place_of_the_gradient_is_refused(given: torch.Tensor) -> None:
    net = nn.Linear(3, 2)
    before = net.weight.detach().clone()
    adam = Adam(net, 1e-2)

    with pytest.raises(SchemaMismatchError, match=r"minimize\(loss\)"):
        adam.step(given)

    assert adam.updates == 0
    assert torch.equal(net.weight, before)
