"""Scales observations and rewards by running statistics, as section ``policy.normalize`` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy.encoders import Encoder, Scaled
from dingsdk.policy.sections import PolicySection
from dingsdk.policy.weights import as_tensor


class RewardScale(Scaled):
    """Divides rewards by the deviation of the discounted return so far.

    The mean is not subtracted: that would add a reward for each further step of an episode.

    Source: the scaling of Engstrom et al. 2020, section 3.
    """

    def __init__(self, clip: float) -> None:
        super().__init__([1], clip)

    def scale(self, reward: Tensor) -> Tensor:
        """Return float32[...]: rewards [...] divided by the deviation, and clipped."""
        return (reward * self.factor).clamp(-self.clip, self.clip).float()

    def scale_array(self, reward: NDArray[Any]) -> NDArray[np.float32]:
        """As ``scale``, of an array."""
        scaled = np.clip(reward * float(self.factor), -self.clip, self.clip)
        return scaled.astype(np.float32)


class Normalizer:
    """The running statistics of a policy: layers of its networks, which are saved with them.

    Those of observations are in the encoders that ``make_encoder`` has made. Those of the
    discounted return are added to the part ``model`` as ``reward_scale``.

    Args:
        name: Name of the policy's class.
        section: Its section; ``normalize`` sets ``obs``, ``reward`` or both.
        parts: Its ``state()``.
        device: Device of its networks.

    Raises:
        ConfigError: the policy has no layer for what is to be normalised.
    """

    def __init__(
        self, name: str, section: PolicySection, parts: Mapping[str, Any], device: torch.device
    ) -> None:
        self._name, self._is_on_policy = name, section.on_policy
        model, wanted = parts["model"], section.normalize
        networks = [part for part in parts.values() if isinstance(part, nn.Module)]
        modules = dict.fromkeys(each for part in networks for each in part.modules())
        self._encoders = [each for each in modules if isinstance(each, Encoder) and scaled_in(each)]
        if wanted.obs and not scaled_in(model):
            raise ConfigError(
                f"policy.normalize.obs is true, but the networks of policy type {section.type!r} "
                f"({name}) have no encoder that normalises: it must make them with "
                "make_encoder(self.section.model.observation); set it to false",
                path="policy.normalize.obs",
            )
        self._rewards: RewardScale | None = None
        if wanted.reward:
            if not isinstance(model, nn.Module):
                raise ConfigError(
                    f"policy.normalize.reward is true, but the model of policy type "
                    f"{section.type!r} ({name}) is a {type(model).__name__} and no torch module, "
                    "in which the statistics would be saved; set it to false",
                    path="policy.normalize.reward",
                )
            self._rewards = RewardScale(wanted.clip).to(device)
            model.add_module("reward_scale", self._rewards)

    def observe(self, steps: Mapping[str, Any]) -> None:
        """Update the statistics.

        Args:
            steps: Tensors ``[n, ...]`` or ``[n, time, ...]`` of new steps, each of them once:
                ``obs``, and ``discounted_return`` if rewards are scaled.

        Raises:
            SchemaMismatchError: one of the two is missing; nothing is changed.
        """
        found = {name: steps.get(name) for name in ("obs", DISCOUNTED_RETURN)}
        lacks_returns = self._rewards is not None and found[DISCOUNTED_RETURN] is None
        if lacks_returns or (self._encoders and found["obs"] is None):
            missing = DISCOUNTED_RETURN if lacks_returns else "obs"
            raise SchemaMismatchError(
                f"policy.normalize needs the column {missing!r} in the samples of {self._name}, "
                f"which have {', '.join(sorted(steps))}; collectors of dingsdk add "
                f"{DISCOUNTED_RETURN}, and samples() of a policy must keep it",
                key=missing,
                expected=missing,
                found=sorted(steps),
            )
        for encoder in self._encoders:
            encoder.features.measure(found["obs"])
        if self._rewards is not None:
            self._rewards.measure(found[DISCOUNTED_RETURN])

    def scale_collected(self, columns: dict[str, Any]) -> None:
        """Scale, on-policy, the rewards in columns of steps, before samples are made of them.

        They are scaled by the statistics with which they were collected. Off-policy rewards are
        stored as they are, since the newest statistics scale them in each update.
        """
        if self._rewards is not None and self._is_on_policy and "reward" in columns:
            columns["reward"] = self._rewards.scale_array(columns["reward"])

    def scale_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors of a batch as ``learn`` takes them: off-policy, with scaled rewards.

        ``discounted_return`` is left out.
        """
        found = {name: column for name, column in batch.items() if name != DISCOUNTED_RETURN}
        if self._rewards is not None and not self._is_on_policy and "reward" in found:
            found["reward"] = self._rewards.scale(found["reward"])
        return found

    @property
    def statistics(self) -> list[dict[str, Tensor]]:
        """All statistics, for another process that trains the same policy."""
        return [layer.state_dict() for layer in self._layers()]

    @statistics.setter
    def statistics(self, value: list[Mapping[str, Any]]) -> None:
        with torch.no_grad():
            for layer, state in zip(self._layers(), value, strict=True):
                for name, tensor in layer.state_dict().items():
                    tensor.copy_(as_tensor(state[name]))

    def _layers(self) -> list[Scaled]:
        found = [layer for encoder in self._encoders for layer in scaled_in(encoder)]
        return found if self._rewards is None else [*found, self._rewards]


def scaled_in(part: Any) -> list[Scaled]:
    """Return the layers of a policy's part that scale by running statistics."""
    modules = part.modules() if isinstance(part, nn.Module) else ()
    return [each for each in modules if isinstance(each, Scaled)]
