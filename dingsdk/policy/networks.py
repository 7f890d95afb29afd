"""Networks with heads: torch modules whose parameters can lie in one flat vector."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor, nn

from dingsdk.policy.encoders import MLP, make_encoder

Module = TypeVar("Module", bound=nn.Module)


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move the parameters of a module into one vector, and return it.

    What treats all parameters alike is then one operation instead of one a tensor: the Adam step,
    the gradient norm, the copy into a target network. The parameters become views of the vector,
    so the module must be on its device already.
    """
    parameters = list(module.parameters())
    sizes = [each.numel() for each in parameters]
    flat = torch.cat([each.detach().reshape(-1) for each in parameters])
    for each, part in zip(parameters, torch.split(flat, sizes), strict=True):
        each.data = part.view_as(each)
    return flat


def frozen(module: Module) -> Module:
    """Return a module that shares the parameters of another, and records no gradients.

    Calls of it need no ``torch.no_grad()``. Make it after ``flatten_parameters``.
    """
    twin = copy.deepcopy(module)
    for own, shared in zip(twin.parameters(), module.parameters(), strict=True):
        own.requires_grad_(False).data = shared.data
    return twin


class QNetwork(nn.Module):
    """An encoder, and linear heads from its features to one value per discrete action.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_count: Number of actions.
        hidden_sizes: Width of each hidden layer of the encoder; ReLU follows each. May be empty.
        dueling: Whether a state value and advantages have heads of their own (Wang et al. 2016,
            eq. 9).
    """

    def __init__(
        self,
        obs_shape: Any,
        action_count: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.action_count = action_count
        self.encoder = make_encoder(obs_shape, hidden_sizes)
        width = self.encoder.width
        self.head = nn.Linear(width, action_count)
        self.value = nn.Linear(width, 1) if dueling else None
        # Looked up once, as submodules take a microsecond each too.
        self._encode, self._head = self.encoder.forward, (self.head.weight, self.head.bias)

    def forward(self, obs: Any) -> Tensor:
        """Return action values ``float32[n, actions]`` of observations ``[n, ...]``."""
        hidden = self._encode(obs)
        advantages = F.linear(hidden, *self._head)
        if self.value is None:
            return advantages
        value: Tensor = self.value(hidden)
        return value + advantages - advantages.mean(1, keepdim=True)


class ActorCritic(nn.Module):
    """Two multi-layer perceptrons over a flat observation: action logits, and a state value.

    Args:
        obs_size: Length of an observation.
        action_count: Number of actions.
        hidden_sizes: Width of each hidden layer of either; tanh follows each.

    Source: Schulman et al. 2017, section 6.1. Weights are orthogonal, with gains as in Andrychowicz
    et al. 2021, section 3.2: sqrt(2) in hidden layers, 0.01 for the logits, 1 for the value.
    """

    def __init__(
        self, obs_size: int, action_count: int, hidden_sizes: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        self.actor = MLP([obs_size, *hidden_sizes, action_count], is_tanh=True)
        self.critic = MLP([obs_size, *hidden_sizes, 1], is_tanh=True)
        for network, last_gain in ((self.actor, 0.01), (self.critic, 1.0)):
            for layer in network.layers:
                is_last = layer is network.layers[-1]
                nn.init.orthogonal_(layer.weight, last_gain if is_last else math.sqrt(2))
                nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``float32[n, actions]`` and values ``float32[n]``."""
        return self.actor.forward(obs), self.values(obs)

    def values(self, obs: Tensor) -> Tensor:
        """Return the values alone, ``float32[n]``."""
        return self.critic.forward(obs).squeeze(-1)
