"""Networks with heads, and functions to move a module's parameters into one flat vector."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor, nn

from dingsdk.data.action_mask import ACTION_MASK
from dingsdk.data.pytree import flatten, map_leaves
from dingsdk.policy.distributions import ActionDistribution
from dingsdk.policy.encoders import MLP, Scaled, make_encoder

Module = TypeVar("Module", bound=nn.Module)

_ILLEGAL = -1e8
"""Value and logit of actions that are not legal; finite, as 0 times infinity is NaN."""


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move the parameters of a module into one vector, and return it.

    An operation on all parameters is then one call instead of one per tensor: the Adam step, the
    gradient norm, the copy into a target network. The parameters become views of the vector, so
    the module must be on its device already.
    """
    parameters = list(module.parameters())
    sizes = [each.numel() for each in parameters]
    flat = torch.cat([each.detach().reshape(-1) for each in parameters])
    for each, part in zip(parameters, torch.split(flat, sizes), strict=True):
        each.data = part.view_as(each)
    return flat


def frozen(module: Module) -> Module:
    """Return a copy that shares the module's parameters and buffers, and records no gradients.

    Calls of the copy need no ``torch.no_grad()``. Make the copy after ``flatten_parameters``.
    """
    twin = copy.deepcopy(module)
    for own, shared in zip(twin.parameters(), module.parameters(), strict=True):
        own.requires_grad_(False).data = shared.data
    for own_buffer, shared_buffer in zip(twin.buffers(), module.buffers(), strict=True):
        own_buffer.data = shared_buffer.data
    return twin


def target_of(network: Module) -> tuple[Module, Tensor]:
    """Return a target network: a copy that records no gradients, and its parameters as a vector.

    ``vector.lerp_(optimizer.flat, share)`` moves it towards the network that an ``Adam`` trains;
    ``vector.copy_(optimizer.flat)`` makes both equal.
    """
    target = copy.deepcopy(network).requires_grad_(False)
    return target, flatten_parameters(target)


def without_illegal(outputs: Tensor, obs: Any) -> Tensor:
    """Return action values or logits, very low for the actions that ``action_mask`` forbids.

    Rows without a legal action, as after an episode's end, are unchanged.

    Args:
        outputs: float32[..., actions].
        obs: Observations; without ``obs["action_mask"]`` all actions are legal.
    """
    if not isinstance(obs, dict) or ACTION_MASK not in obs:
        return outputs
    legal = obs[ACTION_MASK].bool()
    return outputs.masked_fill(~legal & legal.any(-1, keepdim=True), _ILLEGAL)


class QNetwork(nn.Module):
    """An encoder, and linear heads from its features to one value per discrete action.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_count: Number of actions.
        hidden_sizes: Width of each hidden layer of the encoder; ReLU follows each. May be empty.
        dueling: Whether the state value and the advantages have separate heads (Wang et al. 2016,
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
        # Looked up once, as each access to a submodule takes a microsecond.
        self._encode, self._head = self.encoder.forward, (self.head.weight, self.head.bias)

    def forward(self, obs: Any) -> Tensor:
        """Return action values ``float32[n, actions]`` of observations ``[n, ...]``."""
        hidden = self._encode(obs)
        values = F.linear(hidden, *self._head)
        if self.value is not None:
            values = self.value(hidden) + values - values.mean(-1, keepdim=True)
        return without_illegal(values, obs)


class RecurrentQNetwork(nn.Module):
    """An encoder, an LSTM after it, and linear heads to one value per discrete action.

    Other arguments as ``QNetwork``.

    Args:
        lstm_size: Units of the LSTM.

    Attributes:
        state_size: Length of a recurrent state: output and cell of the LSTM, ``2 * lstm_size``.
    """

    def __init__(
        self,
        obs_shape: Any,
        action_count: int,
        hidden_sizes: Sequence[int] = (64, 64),
        lstm_size: int = 64,
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.state_size = 2 * lstm_size
        self.encoder = make_encoder(obs_shape, hidden_sizes)
        self.lstm = nn.LSTMCell(self.encoder.width, lstm_size)
        self.heads = QNetwork(lstm_size, action_count, [], dueling=dueling)

    def forward(self, obs: Any, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the network over the steps of sequences.

        Args:
            obs: Observations ``[n, time, ...]``.
            state: Before the first step, ``float32[n, state_size]``.
            mask: ``bool[n, time]``, true for the steps that change the state; None: all.

        Returns:
            Action values ``float32[n, time, actions]``, and the last state.
        """
        count, time = flatten(obs)[0][1].shape[:2]
        features = self.encoder.forward(map_leaves(lambda leaf: leaf.flatten(0, 1), obs))
        inputs = features.view(count, time, -1).unbind(1)
        output, cell = state.chunk(2, 1)
        outputs = []
        for step, each in enumerate(inputs):
            before, (output, cell) = (output, cell), self.lstm(each, (output, cell))
            if mask is not None:
                changes = mask[:, step, None]
                output = torch.where(changes, output, before[0])
                cell = torch.where(changes, cell, before[1])
            outputs.append(output)
        values = without_illegal(self.heads.forward(torch.stack(outputs, 1)), obs)
        return values, torch.cat((output, cell), 1)


class ReturnScale(Scaled):
    """Mean and deviation of the returns so far, by which a critic's values are scaled.

    Source: van Hasselt et al. 2016 (arXiv:1602.07714), without the correction of the weights.
    """

    def __init__(self) -> None:
        super().__init__([1])

    def scale(self, returns: Tensor) -> Tensor:
        """Return float32[n]: returns less their mean, divided by their deviation."""
        return ((returns - self.mean) * torch.rsqrt(self.var + 1e-8)).float()

    def restore(self, values: Tensor) -> Tensor:
        """Return float32[n]; reverses ``scale``."""
        return (values * (self.var + 1e-8).sqrt() + self.mean).float()


class ActorCritic(nn.Module):
    """Computes the outputs for a distribution of actions, and a state value.

    ``actor`` and ``critic`` are two multi-layer perceptrons, so that large errors of the values do
    not change the actor. Only convolutions are shared: with them there is one encoder, and
    ``actor`` and ``critic`` are linear layers after it.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        distribution: Distribution of the actions.
        hidden_sizes: Width of each hidden layer; an activation follows each.
        critic_sizes: Widths of the critic's own hidden layers; None for those of the actor. After a
            shared encoder they are additional.
        is_tanh: tanh instead of ReLU.
        scales_values: Whether the critic learns values on the scale of ``value_scale``.

    Attributes:
        value_scale: The statistics of returns by which values are scaled; None for no scaling.

    Source: Schulman et al. 2017, section 6.1. Weights are orthogonal, with gains as in Andrychowicz
    et al. 2021, section 3.2: sqrt(2) in hidden layers, 0.01 for the actions, 1 for the value.
    """

    def __init__(
        self,
        obs_shape: Any,
        distribution: ActionDistribution,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        critic_sizes: Sequence[int] | None = None,
        is_tanh: bool = True,
        scales_values: bool = False,
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.encoder = make_encoder(obs_shape, (), is_tanh=is_tanh)
        if next(self.encoder.parameters(), None) is not None:
            self.encoder = make_encoder(obs_shape, hidden_sizes, is_tanh=is_tanh)
            hidden_sizes = ()
        own = hidden_sizes if critic_sizes is None else critic_sizes
        width = self.encoder.width
        self.actor = MLP([width, *hidden_sizes, distribution.width], is_tanh=is_tanh)
        self.critic = MLP([width, *own, 1], is_tanh=is_tanh)
        self.value_scale = ReturnScale() if scales_values else None
        _make_orthogonal(self, self.actor.layers[-1], self.critic.layers[-1])

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return ``float32[n, distribution.width]`` and values ``float32[n]`` of ``[n, ...]``."""
        hidden = self.encoder.forward(obs)
        outputs = without_illegal(self.actor.forward(hidden), obs)
        return outputs, _values(self.critic.forward(hidden), self.value_scale)


class RecurrentActorCritic(nn.Module):
    """``ActorCritic`` with one encoder and a recurrent layer, for envs that hide their state.

    Other arguments as ``ActorCritic``.

    Args:
        kind: ``gru`` or ``lstm``.
        size: Number of recurrent units.

    Attributes:
        state_size: Length of a recurrent state: the units' outputs, and for an LSTM their cells.
    """

    def __init__(
        self,
        obs_shape: Any,
        distribution: ActionDistribution,
        hidden_sizes: Sequence[int],
        kind: Literal["gru", "lstm"],
        size: int,
        *,
        critic_sizes: Sequence[int] | None = None,
        is_tanh: bool = True,
        scales_values: bool = False,
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.encoder = make_encoder(obs_shape, hidden_sizes, is_tanh=is_tanh)
        self.recurrent = (nn.GRU if kind == "gru" else nn.LSTM)(self.encoder.width, size)
        self.actor = MLP([size, distribution.width])
        self.critic = MLP([size, *(critic_sizes or ()), 1], is_tanh=is_tanh)
        self.value_scale = ReturnScale() if scales_values else None
        self.state_size = size if kind == "gru" else 2 * size
        _make_orthogonal(self, self.actor.layers[-1], self.critic.layers[-1])

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the network over one step.

        Args:
            obs: ``[n, ...]``.
            state: ``float32[n, state_size]``.

        Returns:
            As ``ActorCritic``, and the next state ``float32[n, state_size]``.
        """
        hidden, state = self._recur(self.encoder.forward(obs)[None], state)
        return *self._heads(hidden[0], obs), state

    def unroll(self, obs: Any, state: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network over sequences of different lengths.

        Args:
            obs: ``[n, ...]``, the first steps of all sequences, then all second steps and so on.
            state: ``float32[k, state_size]``, before each sequence.
            mask: ``bool[t, k]``, true for the n steps that exist.

        Returns:
            As ``ActorCritic``, in the order of ``obs``.
        """
        features = self.encoder.forward(obs)
        padded = features.new_zeros((*mask.shape, features.shape[1]))
        padded[mask] = features
        hidden, _ = self._recur(padded, state)
        return self._heads(hidden[mask], obs)

    def _recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.recurrent, nn.GRU):
            hidden, last = self.recurrent(features, state[None])
            return hidden, last[0]
        output, cell = (part[None].contiguous() for part in state.chunk(2, 1))
        hidden, (output, cell) = self.recurrent(features, (output, cell))
        return hidden, torch.cat((output[0], cell[0]), 1)

    def _heads(self, hidden: Tensor, obs: Any) -> tuple[Tensor, Tensor]:
        outputs = without_illegal(self.actor.forward(hidden), obs)
        return outputs, _values(self.critic.forward(hidden), self.value_scale)


def _values(outputs: Tensor, scale: ReturnScale | None) -> Tensor:
    values = outputs.squeeze(-1)
    return values if scale is None else scale.restore(values)


def _make_orthogonal(network: nn.Module, actor: nn.Linear, critic: nn.Linear) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            gain = 0.01 if layer is actor else 1.0 if layer is critic else math.sqrt(2)
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
