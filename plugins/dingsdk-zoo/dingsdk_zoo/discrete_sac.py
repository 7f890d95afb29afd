"""Soft actor-critic for discrete actions: expectations over all actions instead of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import LARGEST_INT, Count
from dingsdk.data import legal_actions
from dingsdk.policy import (
    CollectSection,
    ModelSection,
    QNetwork,
    SACLearnSection,
    SACPolicy,
    SACSection,
    discrete_model,
    twin_loss,
)


class DiscreteSACModelSection(ModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of discrete SAC.

    Attributes:
        encoder_hidden_size_list: Widths of the hidden layers of the actor and of both critics; for
            images they follow the convolutions.
    """

    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [128, 128])


class DiscreteSACLearnSection(SACLearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of discrete SAC.

    Attributes:
        update_per_collect: Iterations after each collect.
        target_entropy: Target of the entropy in nats; None for 0.98 times the largest one.
    """

    batch_size: Count = 64
    target_entropy: Annotated[float, Meta(ge=0, le=LARGEST_INT)] | None = None


class DiscreteSACCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of discrete SAC."""

    n_sample: Count | None = 16


class DiscreteSACSection(SACSection, frozen=True, kw_only=True):
    """Section ``policy`` of discrete SAC."""

    type: str = "discrete_sac"
    model: DiscreteSACModelSection = DiscreteSACModelSection()  # type: ignore[assignment]
    learn: DiscreteSACLearnSection = DiscreteSACLearnSection()
    collect: DiscreteSACCollectSection = DiscreteSACCollectSection()  # type: ignore[assignment]


class TwinQNetwork(nn.Module):
    """Two networks of action values, of one shape; arguments as ``QNetwork``."""

    def __init__(self, obs_shape: Any, action_count: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = obs_shape, action_count, hidden_sizes
        self.critics = nn.ModuleList(QNetwork(*sizes) for _ in range(2))

    def forward(self, obs: Any) -> Tensor:
        """Return float32[2, n, actions]."""
        return torch.stack([critic.forward(obs) for critic in self.critics])


class DiscreteSACPolicy(SACPolicy):
    """SAC for discrete actions, with two critics and a trained temperature, type ``discrete_sac``.

    If observations have an ``action_mask``, illegal actions have the probability 0.

    Source: Christodoulou 2019 (arXiv:1910.07207), eq. 10 to 12 and algorithm 1. Difference: the
    logarithm of the temperature is trained, and it replaces the temperature as the factor in eq.
    11.
    """

    Config: ClassVar[type[DiscreteSACSection]] = DiscreteSACSection
    section: DiscreteSACSection
    model_from_spaces = staticmethod(partial(discrete_model, "discrete_sac"))

    def build(self) -> None:
        self._start = int(self.section.model.first_actions[0])
        self.build_networks(0.98 * math.log(self.section.model.action_count))

    def make_actor(self) -> nn.Module:
        """Return a new module: ``forward(obs)`` returns logits float32[n, actions]."""
        return QNetwork(*self._sizes())

    def make_critic(self) -> nn.Module:
        """Return a new module that is called as ``TwinQNetwork``."""
        return TwinQNetwork(*self._sizes())

    def _sizes(self) -> tuple[Any, int, list[int]]:
        model = self.section.model
        return model.observation, model.action_count, model.encoder_hidden_size_list

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        legal_actions(obs, env_ids)
        logits = self.array(self._acting_network.forward(self.tensor(obs)))
        self.check_finite(logits, obs, env_ids)
        if explore:
            # The index of the largest logit after adding Gumbel noise is a draw.
            logits = logits + self.rng.gumbel(size=logits.shape).astype(np.float32)
        return {"action": logits.argmax(1) + self._start}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        return (network.forward(obs).argmax(1) + self._start,)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train both critics, the actor and the temperature once.

        Args:
            batch: Samples with ``obs`` [n, ...], ``action`` [n], ``reward`` [n] (n-step),
                ``next_obs`` [n, ...], ``discount`` [n] (0: no bootstrap) and perhaps the importance
                weights ``IS`` [n], which weight the critics' loss.

        Returns:
            Scalars; ``critic_loss`` is the sum over both critics; with ``policy.priority`` also
            ``priority``, a list of the mean of both absolute TD errors.

        Raises:
            NonFiniteError: a loss or its gradient is NaN or infinite; that step was not taken.
        """
        learn, rows = self.section.learn, (len(batch["action"]),)
        self.check_shapes(batch, action=rows, reward=rows, discount=rows)
        obs, action = self.tensor(batch["obs"]), batch["action"].long() - self._start
        alpha = self._temperature.log_alpha.detach().exp()
        target = self.targets(batch, alpha)
        values = self._critic.forward(obs)
        errors = values.gather(2, action.expand(2, -1).unsqueeze(2)).squeeze(2) - target
        critic_loss = 0.5 * twin_loss(errors, batch.get("IS"))
        norm = self._critic_optimizer.minimize(critic_loss)

        log_probs = torch.log_softmax(self._actor.forward(obs), 1)
        probs, smallest = log_probs.exp(), self._frozen_critic.forward(obs).amin(0)
        actor_loss = (probs * (alpha * log_probs - smallest)).sum(1).mean()
        self._actor_optimizer.minimize(actor_loss)

        entropy = -(probs * log_probs).sum(1).mean().detach()
        temperature_loss = (self._temperature.log_alpha * (entropy - self._target_entropy)).sum()
        if learn.auto_alpha:
            self._temperature_optimizer.minimize(temperature_loss)
        self._target_flat.lerp_(self._critic_optimizer.flat, learn.target_theta)

        value = (probs * smallest).sum(1).mean()
        losses = critic_loss, actor_loss, temperature_loss, alpha[0], value, target.mean(), entropy
        logged = torch.stack([each.detach() for each in losses]).tolist()
        log_vars: dict[str, Any] = dict(
            zip(self.monitored, [logged[0] + logged[1], *logged, norm], strict=True)
        )
        if self.section.priority:
            log_vars["priority"] = errors.detach().abs().mean(0).tolist()
        return log_vars

    def targets(self, batch: Mapping[str, Any], alpha: Tensor) -> Tensor:
        """Return the targets of both critics, float32[n], for the temperature ``alpha``."""
        next_obs = self.tensor(batch["next_obs"])
        log_probs = torch.log_softmax(self._acting_network.forward(next_obs), 1)
        soft = self._target.forward(next_obs).amin(0) - alpha * log_probs
        next_value = (log_probs.exp() * soft).sum(1)
        return torch.addcmul(batch["reward"].float(), batch["discount"].float(), next_value)
