"""Implicit Q-learning: offline learning that values only the actions in recorded data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import LARGEST_INT, Count, Finite, Scheduled, SmallCount
from dingsdk.data import SampleBatch
from dingsdk.policy import (
    MLP,
    ActionModelSection,
    Adam,
    Categorical,
    Stateful,
    action_model,
    frozen,
    make_encoder,
    nstep_samples,
    target_of,
    twin_loss,
)
from dingsdk_zoo.bc import BCLearnSection, BCPolicy, BCSection

_LARGEST_WEIGHT = 100.0
"""Largest weight of a sample in the policy's loss."""
_LOGGED = ("total_loss", "value_loss", "critic_loss", "actor_loss", "q_value", "advantage")


class IQLModelSection(ActionModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of IQL.

    Attributes:
        encoder_hidden_size_list: Widths of the hidden layers of each network.
    """

    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [256, 256])


class IQLLearnSection(BCLearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of IQL.

    Attributes:
        batch_size: Samples of one train iteration.
        learning_rate: Step size of Adam, for each network.
        expectile: Expectile of the action values that is the state value: 0.5 is their mean,
            values near 1 approach the best action in the data.
        beta: Inverse temperature: 0 clones all actions, large values only the best ones.
        target_theta: Share by which the target networks move towards the critics' weights in each
            iteration.
    """

    batch_size: Count = 256
    learning_rate: Scheduled[Finite] = 3e-4
    expectile: Scheduled[Annotated[float, Meta(gt=0, lt=1)]] = 0.7
    beta: Scheduled[Annotated[float, Meta(ge=0, le=LARGEST_INT)]] = 3.0
    target_theta: Scheduled[Annotated[float, Meta(ge=1e-6, le=1)]] = 0.005


class IQLSection(BCSection, frozen=True, kw_only=True):
    """Section ``policy`` of IQL.

    Attributes:
        nstep: Env steps whose rewards are summed before the bootstrap value.
    """

    type: str = "iql"
    nstep: SmallCount = 1  # type: ignore[assignment]
    model: IQLModelSection = IQLModelSection()
    learn: IQLLearnSection = IQLLearnSection()


class Critic(nn.Module):
    """An encoder, and multi-layer perceptrons from its features, and an action, to one value each.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_size: Length of an action; 0: the networks have no action.
        hidden_sizes: Width of each hidden layer.
        count: Number of values.
    """

    def __init__(
        self, obs_shape: Any, action_size: int, hidden_sizes: Sequence[int], count: int
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(obs_shape, ())
        widths = [self.encoder.width + action_size, *hidden_sizes, 1]
        self.heads = nn.ModuleList(MLP(widths) for _ in range(count))

    def forward(self, obs: Any, *action: Tensor) -> Tensor:
        """Return float32[count, n] of observations ``[n, ...]`` and actions float32[n, size]."""
        features = torch.cat((self.encoder.forward(obs), *action), 1)
        return torch.cat([head(features) for head in self.heads], 1).T


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return the mean of the squared errors, where those above 0 have the weight ``expectile``.

    Errors below 0 have the weight ``1 - expectile``.

    Source: Kostrikov et al. 2021, section 3 (expectile regression), the loss of eq. 5.
    """
    return (torch.where(errors > 0, expectile, 1 - expectile) * errors.square()).mean()


class IQLPolicy(BCPolicy):
    """Implicit Q-learning, type key ``iql``.

    The state value is an expectile of the values of recorded actions, so that no other action is
    ever valued. The policy clones the recorded actions, with larger weights for better ones.

    Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning"
    (arXiv:2110.06169), algorithm 1, eq. 5 to 7. Differences: value, critic and policy are trained
    in each iteration, without a schedule of the learning rate; the policy has the distributions of
    PPO, so it takes discrete actions too. Weights of samples are at most 100, as in the authors'
    code.
    """

    Config: ClassVar[type[IQLSection]] = IQLSection
    section: IQLSection
    monitored = (*_LOGGED, "grad_norm")
    model_from_spaces = staticmethod(partial(action_model, "iql"))

    def build(self) -> None:
        super().build()
        if not self.learns:
            return
        model, rate = self.section.model, self.section.learn.learning_rate
        distribution, sizes = self._network.distribution, model.encoder_hidden_size_list
        self._counts = distribution.counts if isinstance(distribution, Categorical) else None
        self._critic = Critic(model.observation, distribution.width, sizes, 2).to(self.device)
        self._critic_optimizer = Adam(self._critic, rate)
        self._target, self._target_flat = target_of(self._critic)
        self._value = Critic(model.observation, 0, sizes, 1).to(self.device)
        self._value_optimizer = Adam(self._value, rate)
        self._frozen_value = frozen(self._value)

    def state(self) -> Mapping[str, Stateful]:
        if not self.learns:
            return super().state()
        return {
            **super().state(),
            "critic": self._critic,
            "target_critic": self._target,
            "critic_optimizer": self._critic_optimizer,
            "value": self._value,
            "value_optimizer": self._value_optimizer,
        }

    def samples(self, columns: dict[str, Any], ends: NDArray[Any]) -> SampleBatch:
        section = self.section
        return nstep_samples(columns, ends, gamma=section.discount_factor, nstep=section.nstep)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        recorded, rows = self.recorded_actions(batch), len(batch["action"])
        self.check_shapes(batch, reward=(rows,), discount=(rows,))
        obs, next_obs = self.tensor(batch["obs"]), self.tensor(batch["next_obs"])
        action, learn = self._critic_action(recorded), self.section.learn
        q_value = self._target.forward(obs, action).amin(0)
        value_loss = expectile_loss(q_value - self._value.forward(obs)[0], learn.expectile)  # eq. 5
        self._value_optimizer.minimize(value_loss)

        after = self._frozen_value.forward(next_obs)[0]
        target = torch.addcmul(batch["reward"].float(), batch["discount"].float(), after)
        errors = self._critic.forward(obs, action) - target
        critic_loss = twin_loss(errors, None)  # eq. 6
        norm = self._critic_optimizer.minimize(critic_loss)
        self._target_flat.lerp_(self._critic_optimizer.flat, learn.target_theta)

        advantage = q_value - self._frozen_value.forward(obs)[0]
        weights = (learn.beta * advantage).exp().clamp(max=_LARGEST_WEIGHT)
        log_prob, _ = self.evaluate(batch, recorded)
        actor_loss = -(weights * log_prob).mean()  # eq. 7
        self._optimizer.minimize(actor_loss)

        losses = torch.stack((value_loss, critic_loss, actor_loss)).detach()
        logged = [losses.sum(), *losses, q_value.mean(), advantage.mean()]
        found = dict(zip(_LOGGED, torch.stack(logged).tolist(), strict=True))
        return {**found, "grad_norm": norm}

    def _critic_action(self, recorded: Tensor) -> Tensor:
        """Return actions as the critic takes them: numbers of Discrete spaces become one-hot."""
        if self._counts is None:
            return recorded
        starts, rows, parts = self.section.model.first_actions, len(recorded), []
        for column, (start, count) in enumerate(zip(starts, self._counts, strict=True)):
            index = recorded[:, column : column + 1].long() - start
            parts.append(recorded.new_zeros(rows, count).scatter_(1, index, 1.0))
        return torch.cat(parts, 1)
