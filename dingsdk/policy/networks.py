"""Small networks whose parameters lie in one flat vector.

The vector makes everything that treats parameters alike one operation instead of one a
tensor: the Adam step, the gradient norm, the copy into a target network. Names and shapes
are those that ``torch.nn.Linear`` layers would have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor, nn

from dingsdk.policy.weights import as_array, check_shapes


class QNetwork:
    """Multi-layer perceptron from a flat observation to one value per discrete action.

    Args:
        obs_size: Length of an observation.
        action_count: Number of actions.
        hidden_sizes: Width of each hidden layer; ReLU follows each. May be empty.
        dueling: End in a state value and advantages (Wang et al. 2016, eq. 9) instead of one
            layer of action values.
        seed: Of the initial weights, which are those of ``torch.nn.Linear``: uniform within
            ``1 / sqrt(fan_in)``. The global random state is not touched.
        device: Where the parameters live.

    Attributes:
        flat: float32[parameters], all parameters; the layers are views of it.
        trainable: The layers' parameters as leaves that record gradients.
    """

    def __init__(
        self,
        obs_size: int,
        action_count: int,
        hidden_sizes: Sequence[int] = (64, 64),
        *,
        dueling: bool = False,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.obs_size, self.action_count = obs_size, action_count
        self.dueling = dueling
        self.shapes = _shapes(obs_size, action_count, hidden_sizes, dueling)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.flat = self._initial(seed).to(device)
        self._fixed = self.views(self.flat)
        self.trainable = [view.detach().requires_grad_() for view in self._fixed]

    def __repr__(self) -> str:
        layers = ", ".join(f"{name}{list(shape)}" for name, shape in self.shapes.items())
        return f"QNetwork({self.flat.numel()} parameters on {self.flat.device}: {layers})"

    def values(self, obs: Tensor) -> Tensor:
        """Return action values ``float32[n, actions]`` of ``float32[n, obs_size]``, no gradient."""
        # Plain views cost less than inference mode around parameters: 21 against 25 us for 8
        # observations and 64-64 units, and 60 for nn.Sequential (2026-11).
        return self._forward(obs, self._fixed)

    def values_with_grad(self, obs: Tensor) -> Tensor:
        """As ``values``, recording what the gradient of ``trainable`` needs."""
        return self._forward(obs, self.trainable)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a vector like ``flat``, one per parameter, shaped like it."""
        parts = torch.split(flat, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters by name, without gradients; writes reach the network."""
        return dict(zip(self.shapes, self._fixed, strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over parameters: arrays (read-only is fine) or tensors, on any device.

        Raises:
            SchemaMismatchError: names or shapes are not those of the network, which keeps its own.
        """
        self.check_state(state_dict, "model")
        parts = [as_array(state_dict[name]).ravel() for name in self.shapes]
        flat = np.concatenate(parts, dtype=np.float32, casting="same_kind")
        self.flat.copy_(torch.from_numpy(flat))

    def check_state(self, state: Mapping[str, Any], where: str) -> None:
        """Check that parameters are those of a network like this one; errors as above."""
        check_shapes(self.shapes, state, where)

    def clone(self) -> QNetwork:
        """Return a network of its own with the same weights."""
        twin = QNetwork.__new__(QNetwork)
        twin.__dict__.update(self.__dict__)
        twin.flat = self.flat.clone()
        twin._fixed = twin.views(twin.flat)
        twin.trainable = [view.detach().requires_grad_() for view in twin._fixed]
        return twin

    def _forward(self, obs: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        hidden = obs
        head = len(parameters) - (4 if self.dueling else 2)
        for layer in range(0, head, 2):
            hidden = F.linear(hidden, parameters[layer], parameters[layer + 1]).relu_()
        values = F.linear(hidden, parameters[head], parameters[head + 1])
        if not self.dueling:
            return values
        advantages = F.linear(hidden, parameters[head + 2], parameters[head + 3])
        return values + advantages - advantages.mean(1, keepdim=True)

    def _initial(self, seed: int | None) -> Tensor:
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        flat = torch.empty(sum(self._sizes))
        bound = 0.0
        for part, shape in zip(torch.split(flat, self._sizes), self.shapes.values(), strict=True):
            if len(shape) == 2:
                bound = 1 / math.sqrt(shape[1])
            part.uniform_(-bound, bound, generator=generator)
        return flat


def _shapes(
    obs_size: int, action_count: int, hidden_sizes: Sequence[int], dueling: bool
) -> dict[str, tuple[int, ...]]:
    """Name -> shape, in the order in which the parameters lie in the flat vector."""
    widths = [obs_size, *hidden_sizes]
    layers = {
        f"encoder.{i}": (after, before)
        for i, (before, after) in enumerate(itertools.pairwise(widths))
    }
    if dueling:
        layers["value"] = (1, widths[-1])
        layers["advantage"] = (action_count, widths[-1])
    else:
        layers["head"] = (action_count, widths[-1])
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (after, before) in layers.items():
        shapes[f"{name}.weight"] = (after, before)
        shapes[f"{name}.bias"] = (after,)
    return shapes


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
        self.actor = _mlp([obs_size, *hidden_sizes, action_count], last_gain=0.01)
        self.critic = _mlp([obs_size, *hidden_sizes, 1], last_gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``float32[n, actions]`` and values ``float32[n]``."""
        return self.actor(obs), self.value(obs)

    def value(self, obs: Tensor) -> Tensor:
        """Return the values alone, ``float32[n]``."""
        values: Tensor = self.critic(obs)
        return values.squeeze(-1)


def _mlp(widths: Sequence[int], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    pairs = list(itertools.pairwise(widths))
    for index, (before, after) in enumerate(pairs):
        is_last = index == len(pairs) - 1
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if is_last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer] if is_last else [layer, nn.Tanh()]
    return nn.Sequential(*layers)
