"""Encoders, which turn observations of any ``policy.model.obs_shape`` into one vector per row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor, nn

from dingsdk.data.action_mask import ACTION_MASK
from dingsdk.errors import ConfigError
from dingsdk.policy.spaces import DISCRETE, Normalized, check_shape

_SMALLEST_SCREEN = 36
"""Smallest height and width of images that get the larger network, made for screens of games."""


def make_encoder(
    obs_shape: Any, hidden_sizes: Sequence[int] = (64, 64), *, is_tanh: bool = False
) -> MLP | Encoder:
    """Return a network that turns observations into vectors of length ``width``, its attribute.

    ========================  ====================================================================
    ``obs_shape``             network
    ========================  ====================================================================
    ``4`` or ``[4]``          linear layers of ``hidden_sizes``
    ``"Discrete(4)"``         one-hot vector, then the linear layers
    ``[h, w]``                image of one channel: convolutions (``Convolutions``), then the linear
                              layers; if a side is below 36, a matrix, such as a stack of vectors,
                              which is flattened
    ``[c, h, w]``             image; channels come first if there are fewer of them than columns
    ``[h, w, c]``             image, channels last
    ``[k, h, w, c]``          stack of ``k`` images
    ``{name: obs_shape}``     the features of every part, joined, then the linear layers; an
                              ``action_mask`` is left out
    ========================  ====================================================================

    The network takes float32 tensors ``[n, *obs_shape]``, or a dict of them. Images may be uint8
    too; these are divided by 255. Vectors that are normalised may be float64.

    Args:
        obs_shape: As in ``policy.model.obs_shape``; ``Normalized(obs_shape, clip)`` adds a
            ``Scaled`` for each vector.
        hidden_sizes: Width of each linear layer; an activation follows each. May be empty.
        is_tanh: tanh instead of ReLU after the linear layers.

    Raises:
        ConfigError: the shape is invalid, or has no vector to normalise.
    """
    clip = None
    if isinstance(obs_shape, Normalized):
        obs_shape, clip = obs_shape.obs_shape, obs_shape.clip
    try:
        check_shape(obs_shape)
    except ValueError as error:
        raise ConfigError(f"policy.model.{error}", path="policy.model.obs_shape") from error
    if isinstance(obs_shape, Mapping):
        obs_shape = {name: part for name, part in obs_shape.items() if name != ACTION_MASK}
    elif not isinstance(obs_shape, int | str) and len(obs_shape) == 1:
        obs_shape = obs_shape[0]
    if isinstance(obs_shape, int) and clip is None:
        return MLP([obs_shape, *hidden_sizes], is_tanh=is_tanh, ends_active=True)
    features = _features(obs_shape, clip)
    if clip is not None and not any(isinstance(each, Scaled) for each in features.modules()):
        raise ConfigError(
            f"policy.normalize.obs is true, but obs_shape {obs_shape} has no vector to "
            "normalise; set it to false",
            path="policy.normalize.obs",
        )
    return Encoder(features, hidden_sizes, is_tanh=is_tanh)


class MLP(nn.Module):
    """Linear layers with an activation between them.

    Args:
        widths: Widths of the input, of each hidden layer, and of the output.
        is_tanh: tanh instead of ReLU.
        ends_active: Whether the activation follows the last layer too.

    Attributes:
        width: Length of the vectors that ``forward`` returns.
    """

    def __init__(
        self, widths: Sequence[int], *, is_tanh: bool = False, ends_active: bool = False
    ) -> None:
        super().__init__()
        self.width = widths[-1]
        for index, (before, after) in enumerate(itertools.pairwise(widths)):
            self.add_module(str(index), nn.Linear(before, after))
        self.layers = [layer for layer in self.children() if isinstance(layer, nn.Linear)]
        self._activate = torch.tanh_ if is_tanh else torch.relu_
        # Looked up once: attributes of modules take a microsecond each.
        parameters = [(layer.weight, layer.bias) for layer in self.layers]
        active = len(parameters) - (not ends_active)
        self._hidden, self._linear = parameters[:active], parameters[active:]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``float32[n, widths[-1]]`` of ``float32[n, widths[0]]``."""
        # Calling nn.Linear through nn.Sequential takes twice the time: 22 against 11 us for 8
        # rows and 64-64 units (2026-11).
        activate, linear = self._activate, F.linear
        for weight, bias in self._hidden:
            inputs = activate(linear(inputs, weight, bias))
        for weight, bias in self._linear:
            inputs = linear(inputs, weight, bias)
        return inputs


class Encoder(nn.Module):
    """Features of an observation that is not a plain vector, and linear layers after them.

    Args:
        features: Module with ``width`` whose ``forward`` returns ``float32[n, width]``.
        hidden_sizes: See ``make_encoder``; likewise ``is_tanh``.

    Attributes:
        width: Length of the vectors that ``forward`` returns.
    """

    def __init__(
        self, features: Features, hidden_sizes: Sequence[int], *, is_tanh: bool = False
    ) -> None:
        super().__init__()
        self.features = features
        self.layers = MLP([features.width, *hidden_sizes], is_tanh=is_tanh, ends_active=True)
        self.width = self.layers.width
        # In a tuple, as attributes that are modules are slow to find.
        self._both = features, self.layers

    def forward(self, obs: Any) -> Tensor:
        """Return ``float32[n, width]``."""
        features, layers = self._both
        return layers.forward(features.forward(obs))


class Features(nn.Module):
    """Base class of modules that turn one kind of observation into ``float32[n, width]``."""

    width: int

    def forward(self, obs: Any) -> Tensor:
        """Return ``float32[n, width]``."""
        raise NotImplementedError

    def measure(self, obs: Any) -> None:
        """Update the statistics of observations, if the module has any.

        Args:
            obs: New observations, with any number of leading dimensions.
        """


class Flat(Features):
    """A vector as float32, or a matrix row after row."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.width = math.prod(shape)

    def forward(self, obs: Any) -> Tensor:
        found: Tensor = obs.flatten(1).float()
        return found


class Scaled(Flat):
    """A vector less its mean and divided by its deviation, and clipped.

    Mean and variance are those of all rows that were measured. They are buffers, so that they are
    saved and published with the weights. Their dtype is float64: in float32, the mean of large
    numbers would not move any more after some batches.

    Args:
        shape: Shape of a row.
        clip: Largest magnitude of the result.

    Attributes:
        factor: float32, ``1 / sqrt(var + 1e-8)``.
        centre: float32, the mean, rounded.
        shift: float32, ``(centre - mean) * factor``. A vector is ``(vector - centre) * factor +
            shift``, which takes half the time of a difference in float64 and is as exact: float32
            numbers near ``centre`` have an exact difference to it.

    Source: Chan et al. 1979, eq. 2.1, for the variance of joined samples.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    factor: Tensor
    centre: Tensor
    shift: Tensor

    def __init__(self, shape: Sequence[int], clip: float = math.inf) -> None:
        super().__init__(shape)
        self.clip = clip
        self.register_buffer("mean", torch.zeros(self.width, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self.width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("factor", torch.ones(self.width))
        self.register_buffer("centre", torch.zeros(self.width))
        self.register_buffer("shift", torch.zeros(self.width))
        self._used = self.centre, self.factor, self.shift

    def forward(self, obs: Any) -> Tensor:
        # In place, and the buffers are looked up once: both take microseconds in each step.
        centre, factor, shift = self._used
        rows = obs.flatten(1)
        if rows.dtype is torch.float64:
            scaled = (rows - self.mean).float().mul_(factor)
        else:
            scaled = torch.addcmul(shift, rows - centre, factor)
        found: Tensor = scaled.clamp_(-self.clip, self.clip)
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # Called to move the module to a device, which makes new buffers.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._used = self.centre, self.factor, self.shift
        return self

    @torch.no_grad()
    def measure(self, obs: Any) -> None:
        rows = obs.reshape(-1, self.width).to(self.mean)
        size, mean = len(rows), rows.mean(0)
        # The mean of no rows is NaN. Training on rows with NaN or infinity raises an error.
        if not torch.isfinite(mean).all():
            return
        # From differences to the mean, as squares of large numbers lose their small digits.
        var = (rows - mean).square_().mean(0)
        share = size / (self.count + size)
        delta = mean - self.mean
        self.var.lerp_(var + delta.square() * (1 - share), share)
        self.mean.add_(delta.mul_(share))
        self.count.add_(size)
        factor = torch.rsqrt(self.var + 1e-8)
        self.factor.copy_(factor)
        self.centre.copy_(self.mean)
        self.shift.copy_((self.centre - self.mean).mul_(factor))


class OneHot(Features):
    """The ``width`` numbers from ``start`` on as one-hot vectors."""

    def __init__(self, width: int, start: int = 0) -> None:
        super().__init__()
        self.width = width
        self._start = start

    def forward(self, obs: Any) -> Tensor:
        return F.one_hot(obs.long() - self._start, self.width).float()


class Joined(Features):
    """The features of every part of a dict, one after the other, in the order of the names."""

    def __init__(self, parts: Mapping[str, Features]) -> None:
        super().__init__()
        self.names = sorted(parts)
        # In a list, as names of modules may not contain dots.
        self.parts = nn.ModuleList(parts[name] for name in self.names)
        self.width = sum(part.width for part in parts.values())

    def measure(self, obs: Any) -> None:
        for name, part in zip(self.names, self.parts, strict=True):
            part.measure(obs[name])  # type: ignore[operator]

    def forward(self, obs: Any) -> Tensor:
        found = [part(obs[name]) for name, part in zip(self.names, self.parts, strict=True)]
        return torch.cat(found, 1)


class Convolutions(Features):
    """Convolutions over images, with ReLU after each.

    Images of at least 36 x 36 pixels: 32 filters of 8 x 8 with stride 4, 64 of 4 x 4 with stride 2,
    64 of 3 x 3. Smaller ones: 16 filters of 3 x 3, and 32 of 3 x 3 with stride 2, both with a
    border of one pixel of zeros.

    Args:
        shape: Shape of an image: ``[h, w]``, ``[c, h, w]``, ``[h, w, c]`` or ``[k, h, w, c]``.

    Source: Mnih et al. 2015, section "Model architecture", without the linear layers. The smaller
    network is not from a paper.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        # The image as [stack, height, width, channels] or [channels, height, width].
        self.has_channels_last = len(shape) == 4 or (len(shape) == 3 and shape[0] >= shape[2])
        *stack, height, width = shape[:-1] if self.has_channels_last else shape
        self.channels = math.prod(stack) * (shape[-1] if self.has_channels_last else 1)
        if min(height, width) >= _SMALLEST_SCREEN:
            layers = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
        else:
            layers = [(16, 3, 1, 1), (32, 3, 2, 1)]
        self.convolutions = nn.ModuleList()
        before = self.channels
        for filters, size, stride, padding in layers:
            self.convolutions.append(nn.Conv2d(before, filters, size, stride, padding))
            before = filters
            height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        self.width = before * height * width

    def forward(self, obs: Any) -> Tensor:
        if obs.shape[1:] != self.shape:
            raise RuntimeError(f"the shape of an image is {tuple(obs.shape[1:])}, not {self.shape}")
        images: Tensor = obs / 255 if obs.dtype == torch.uint8 else obs.float()
        if self.has_channels_last:
            images = images.movedim(-1, -3)
        height, width = images.shape[-2:]
        images = images.reshape(-1, self.channels, height, width)
        for convolution in self.convolutions:
            images = torch.relu_(convolution(images))
        return images.flatten(1)


def _features(shape: Any, clip: float | None) -> Features:
    """Return the features of a shape; vectors are normalised unless ``clip`` is None."""
    if isinstance(shape, Mapping):
        return Joined({name: _features(part, clip) for name, part in shape.items()})
    if isinstance(shape, str):
        return OneHot(*(int(part or 0) for part in DISCRETE.fullmatch(shape).groups()))  # type: ignore[union-attr] # checked
    sides = [shape] if isinstance(shape, int) else shape
    is_matrix = len(sides) == 2 and min(sides) < _SMALLEST_SCREEN
    if len(sides) > 1 and not is_matrix:
        return Convolutions(sides)
    return Flat(sides) if clip is None else Scaled(sides, clip)
