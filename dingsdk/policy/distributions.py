"""Distributions of actions, given by a network's outputs, for each kind of action space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Count
from dingsdk.errors import ConfigError
from dingsdk.policy.sections import ModelSection
from dingsdk.policy.spaces import actions_of, check_mask, obs_shape, unsupported_space

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


class BoxModelSection(ModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of a policy with continuous actions.

    Attributes:
        action_shape: Number of action dimensions, or the shape of an action of several axes; None:
            read from the env.
        action_low: Lower bound of each number of an action, row after row; None: read from the env.
        action_high: Upper bound of each number of an action; None: read from the env.
    """

    action_shape: Count | Annotated[list[Count], Meta(min_length=1)] | None = None
    action_low: list[float] | None = None
    action_high: list[float] | None = None


class ActionBox:
    """The bounds of continuous actions.

    Args:
        model: Section with ``action_shape``, ``action_low`` and ``action_high``.
        is_finite: Whether infinite bounds are refused.

    Attributes:
        shape: Shape of an action.
        size: Numbers of an action.
        low: float32[size], the lower bounds, rounded upwards.
        high: float32[size], the upper bounds, rounded downwards.

    Raises:
        ConfigError: the bounds are not set or infinite, their number is not that of
            ``action_shape``, or a lower bound is not below the upper bound.
    """

    def __init__(self, model: BoxModelSection, *, is_finite: bool) -> None:
        found = model.action_shape
        self.shape = tuple(found) if isinstance(found, list) else (model.action_count,)
        self.size = math.prod(self.shape)
        self._center: Tensor | None = None
        low, high = (
            self._read(key, getattr(model, key), is_finite) for key in ("action_low", "action_high")
        )
        with np.errstate(over="ignore"):
            self.low, self.high = low.astype(np.float32), high.astype(np.float32)
        # A bound such as 0.1 in float64 lies between two numbers of float32.
        np.nextafter(self.low, np.inf, out=self.low, where=self.low < low)
        np.nextafter(self.high, -np.inf, out=self.high, where=self.high > high)
        if not (self.low < self.high).all():
            raise ConfigError(
                f"policy.model.action_low {model.action_low} is not below action_high "
                f"{model.action_high} in each dimension, in float32; the wrapper RescaleAction "
                "(env.wrappers) maps other bounds to the env's",
                path="policy.model.action_low",
                expected=model.action_high,
                found=model.action_low,
            )

    @property
    def center(self) -> NDArray[np.float32]:
        """float32[size], the middle of finite bounds."""
        return ((self.low + self.high.astype(np.float64)) / 2).astype(np.float32)

    @property
    def half_range(self) -> NDArray[np.float32]:
        """float32[size], half of the distance between finite bounds; above 0."""
        found = ((self.high - self.low.astype(np.float64)) / 2).astype(np.float32)
        return np.maximum(found, np.finfo(np.float32).smallest_subnormal)

    def clip(self, actions: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return actions float32[n, *shape] of [n, size]; those out of bounds become a bound."""
        found = actions.astype(np.float32, copy=False).clip(self.low, self.high)
        return found if len(self.shape) == 1 else found.reshape(-1, *self.shape)

    def scale(self, actions: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return actions float32[n, *shape] within the bounds of [n, size] in [-1, 1]."""
        with np.errstate(over="ignore"):  # next to the largest float32
            return self.clip(actions * self.half_range + self.center)

    def scale_tensor(self, actions: Tensor) -> Tensor:
        """Return what ``scale`` returns, as a tensor on the CPU; for ``BasePolicy.greedy``."""
        half_range, center, low, high = map(
            torch.from_numpy, (self.half_range, self.center, self.low, self.high)
        )
        return (actions * half_range + center).clamp(low, high).reshape(-1, *self.shape)

    def unscale(self, actions: Tensor) -> Tensor:
        """Return float32[n, size] in [-1, 1] of actions [n, *shape]; reverses ``scale``."""
        if self._center is None or self._center.device != actions.device:
            self._center, self._half_range = (
                torch.from_numpy(each).to(actions.device) for each in (self.center, self.half_range)
            )
        return (actions.flatten(1).float() - self._center) / self._half_range

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return ``count`` actions float32[n, *shape], uniform within finite bounds."""
        return self.scale(rng.uniform(-1, 1, (count, self.size)))

    def _read(self, key: str, bounds: list[float] | None, is_finite: bool) -> NDArray[np.float64]:
        found = np.array([] if bounds is None else bounds)
        usable = np.isfinite(found) if is_finite else ~np.isnan(found)
        if bounds is None or len(found) != self.size or not usable.all():
            raise ConfigError(
                f"policy.model.{key} is {bounds}; it must be {self.size} "
                f"{'finite ' if is_finite else ''}numbers, as policy.model.action_shape is "
                f"{self.size if len(self.shape) == 1 else list(self.shape)}",
                path=f"policy.model.{key}",
                expected=self.size,
                found=bounds,
            )
        return found


class ActionDistribution(nn.Module, ABC):
    """The distribution of an action, given by ``width`` outputs of a network.

    Attributes:
        width: Number of outputs of the network.
        column: Name of the recorded column that ``evaluate`` takes.
        shape: Shape of one row of that column; None is not checked.
    """

    width: int
    shape: tuple[int, ...] | None = None
    column = "action"

    @abstractmethod
    def draw(
        self, outputs: NDArray[np.float32], rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        """Draw actions.

        Args:
            outputs: float32[n, width], finite.
            rng: Random generator.

        Returns:
            Columns ``action`` [n, ...] in the env's space, ``log_prob`` float32[n], and the one
            named by ``column`` if that is not ``action``.
        """

    def mode(self, outputs: NDArray[np.floating[Any]]) -> NDArray[Any]:
        """Return the most probable actions [n, ...]."""
        found: NDArray[Any] = self.mode_tensor(torch.from_numpy(outputs)).numpy()
        return found

    @abstractmethod
    def mode_tensor(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions [n, ...] as a tensor."""

    @abstractmethod
    def evaluate(self, outputs: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies.

        Args:
            outputs: float32[n, width].
            drawn: The values that ``draw`` returned as ``column``.

        Returns:
            float32[n] each, in nats.
        """


class Categorical(ActionDistribution):
    """One or several numbers, each drawn independently from its own logits.

    Args:
        counts: How many values each number has.
        is_scalar: Whether an action is one number instead of a vector.
        starts: The first value of each number; None: 0.

    Raises:
        ConfigError: there is not one first value for each number.
    """

    def __init__(
        self, counts: Sequence[int], *, is_scalar: bool, starts: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.counts = list(counts)
        self._starts = [0] * len(self.counts) if starts is None else list(starts)
        if len(self._starts) != len(self.counts):
            raise ConfigError(
                f"policy.model.action_start is {self._starts}; action_shape needs "
                f"{len(self.counts)} numbers",
                path="policy.model.action_start",
                expected=len(self.counts),
                found=self._starts,
            )
        self.width = sum(counts)
        self._is_scalar = is_scalar
        self.shape = () if is_scalar else (len(counts),)

    def draw(
        self, outputs: NDArray[np.float32], rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        # The index of the largest logit after adding Gumbel noise is a draw from the distribution.
        action = self.mode(outputs + rng.gumbel(size=outputs.shape))
        log_prob, _ = self.evaluate(torch.from_numpy(outputs), torch.from_numpy(action))
        return {"action": action, "log_prob": log_prob.numpy()}

    def mode_tensor(self, outputs: Tensor) -> Tensor:
        parts = torch.split(outputs, self.counts, 1)
        found = [part.argmax(1) + start for part, start in zip(parts, self._starts, strict=True)]
        return found[0] if self._is_scalar else torch.stack(found, 1)

    def evaluate(self, outputs: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        drawn = drawn.long().view(len(outputs), -1)
        log_prob = entropy = outputs.new_zeros(())
        for index, logits in enumerate(torch.split(outputs, self.counts, 1)):
            log_probs = torch.log_softmax(logits, 1)
            own = drawn[:, index : index + 1] - self._starts[index]
            log_prob = log_prob + log_probs.gather(1, own).squeeze(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(1)
        return log_prob, entropy


class Gaussian(ActionDistribution):
    """A Gaussian around the outputs, with a deviation that does not depend on the state.

    The drawn value is recorded as ``raw_action``; the env gets it clipped to the bounds.
    Probabilities are those of the drawn value.

    Args:
        box: The bounds.
        log_std: Initial logarithm of the standard deviation.

    Source: Schulman et al. 2017, section 6.1; Andrychowicz et al. 2021, section 3.2.
    """

    column = "raw_action"

    def __init__(self, box: ActionBox, log_std: float = 0.0) -> None:
        super().__init__()
        self.width = box.size
        self.shape = (box.size,)
        self._box = box
        self.log_std = nn.Parameter(torch.full((box.size,), log_std))

    def draw(
        self, outputs: NDArray[np.float32], rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        mean = torch.from_numpy(outputs)
        noise = rng.standard_normal(outputs.shape, np.float32)
        raw = outputs + self.log_std.detach().exp().cpu().numpy() * noise
        log_prob, _ = self._evaluate(mean, torch.from_numpy(raw), self.log_std.detach().cpu())
        return {"action": self._box.clip(raw), "raw_action": raw, "log_prob": log_prob.numpy()}

    def mode_tensor(self, outputs: Tensor) -> Tensor:
        low, high = torch.from_numpy(self._box.low), torch.from_numpy(self._box.high)
        return outputs.clamp(low, high).reshape(-1, *self._box.shape)

    def evaluate(self, outputs: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        return self._evaluate(outputs, drawn, self.log_std)

    def _evaluate(self, mean: Tensor, raw: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (raw - mean) * (-log_std).exp()
        log_prob = (-0.5 * scaled.square() - log_std - _LOG_ROOT_TAU).sum(1)
        entropy = (log_std + (0.5 + _LOG_ROOT_TAU)).sum()
        return log_prob, entropy.expand(len(mean))


class ActionModelSection(BoxModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of a policy for several kinds of action spaces.

    Attributes:
        action_space: ``discrete`` is one number, ``multi_discrete`` a vector of numbers,
            ``continuous`` a vector of floats between bounds. None: read from the env, or else
            discrete.
        action_shape: Number of actions. For ``multi_discrete`` a list with one entry for each
            number of the vector; for ``continuous`` the number of dimensions, or the shape of an
            action of several axes. None: read from the env.
        log_std_init: Initial logarithm of the standard deviation of continuous actions.
    """

    action_space: Literal["discrete", "multi_discrete", "continuous"] | None = None
    action_shape: Count | list[Count] | None = None
    log_std_init: Annotated[float, Meta(ge=-20, le=10)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        is_vector = isinstance(self.action_shape, list) and len(self.action_shape) != 1
        if is_vector and (self.action_space in (None, "discrete") or not self.action_shape):
            raise ValueError(
                f"action_shape is {self.action_shape}, but action_space is "
                f"{self.action_space or 'discrete'!r}, which takes one number; multi_discrete "
                "and continuous take a list"
            )


def make_distribution(model: ActionModelSection) -> ActionDistribution:
    """Return the distribution of the actions that a section describes.

    Raises:
        ConfigError: a size or a bound is not set or invalid.
    """
    if model.action_space == "continuous":
        return Gaussian(ActionBox(model, is_finite=False), model.log_std_init)
    if model.action_space == "multi_discrete":
        found = model.action_shape
        return Categorical(
            found if isinstance(found, list) else [model.action_count],
            is_scalar=False,
            starts=model.first_actions,
        )
    return Categorical([model.action_count], is_scalar=True, starts=model.first_actions)


def action_model(policy: str, observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return the sizes and bounds of an env for ``ActionModelSection``; see ``discrete_model``.

    Actions are a Discrete, a MultiDiscrete of one dimension, or a Box of floats.
    """
    check_mask(policy, observation_space, action_space)
    found = {"obs_shape": obs_shape(policy, observation_space), **actions_of(action_space)}
    if len(found) > 1:
        return found
    raise unsupported_space(
        policy,
        "action",
        action_space,
        "a Discrete, a MultiDiscrete of one dimension, or a Box of floats whose low is below its "
        "high",
    )


def box_model(policy: str, observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return the sizes and bounds of an env for ``BoxModelSection``; see ``discrete_model``.

    Actions are a Box of floats with finite bounds.
    """
    check_mask(policy, observation_space, action_space)
    found = actions_of(action_space)
    if found.pop("action_space", None) != "continuous" or not action_space.is_bounded():
        supported = "a Box of floats with finite bounds, the lower ones below the upper"
        raise unsupported_space(policy, "action", action_space, supported)
    return {"obs_shape": obs_shape(policy, observation_space), **found}
