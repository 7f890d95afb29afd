"""Soft actor-critic for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Count, Finite, Scheduled
from dingsdk.config.section import LARGEST_INT
from dingsdk.data import SampleBatch
from dingsdk.policy.adam import Adam
from dingsdk.policy.base import BasePolicy
from dingsdk.policy.distributions import ActionBox, BoxModelSection, box_model
from dingsdk.policy.encoders import MLP, make_encoder
from dingsdk.policy.networks import frozen, target_of
from dingsdk.policy.returns import nstep_samples
from dingsdk.policy.sections import CollectSection, LearnSection, PolicySection
from dingsdk.policy.weights import Stateful

_LOG_STD_RANGE = (-20.0, 2.0)
_LOGGED = (
    *("total_loss", "critic_loss", "actor_loss", "temperature_loss", "temperature"),
    *("q_value", "target_q_value", "entropy"),
)


class SACModelSection(BoxModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of SAC.

    Attributes:
        encoder_hidden_size_list: Widths of the hidden layers of the actor and of both critics; for
            images they follow the convolutions.
    """

    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [256, 256])


class SACLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of SAC.

    Attributes:
        update_per_collect: Iterations after each collect; 8 for 8 samples is one for every env
            step, as in the paper.
        batch_size: Samples of one train iteration.
        learning_rate_q: Step size of the critics' Adam.
        learning_rate_policy: Step size of the actor's Adam.
        learning_rate_alpha: Step size of the temperature's Adam.
        target_theta: Share by which the target networks move towards the critics' weights in each
            iteration.
        alpha: Temperature, the weight of the entropy; its initial value with ``auto_alpha``.
        auto_alpha: Whether the temperature is trained to keep the entropy at ``target_entropy``.
        target_entropy: Target of the entropy in nats, for actions scaled to [-1, 1]; None for
            minus the number of action dimensions.
    """

    update_per_collect: Count = 8
    batch_size: Count = 256
    learning_rate_q: Scheduled[Finite] = 3e-4
    learning_rate_policy: Scheduled[Finite] = 3e-4
    learning_rate_alpha: Scheduled[Finite] = 3e-4
    target_theta: Scheduled[Annotated[float, Meta(ge=1e-6, le=1)]] = 0.005
    alpha: Annotated[float, Meta(ge=1e-30, le=LARGEST_INT)] = 1.0
    auto_alpha: bool = True
    target_entropy: Annotated[float, Meta(ge=-LARGEST_INT, le=LARGEST_INT)] | None = None


class SACCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of SAC."""

    n_sample: Count | None = 8


class SACSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of SAC."""

    type: str = "sac"
    model: SACModelSection = SACModelSection()  # type: ignore[assignment]
    learn: SACLearnSection = SACLearnSection()
    collect: SACCollectSection = SACCollectSection()


class SquashedGaussian(nn.Module):
    """Actor: a Gaussian whose mean and deviation depend on the observation, squashed by tanh.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_size: Numbers of an action.
        hidden_sizes: Width of each hidden layer; ReLU follows each.

    Source: Haarnoja et al. 2018b (arXiv:1812.05905), appendix C.
    """

    def __init__(self, obs_shape: Any, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoder = make_encoder(obs_shape, ())
        self.net = MLP([self.encoder.width, *hidden_sizes, 2 * action_size])

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the log standard deviation, float32[n, actions] each."""
        mean, log_std = self.net.forward(self.encoder.forward(obs)).chunk(2, -1)
        return mean, log_std.clamp(*_LOG_STD_RANGE)

    def sample(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions.

        Args:
            obs: Observations [n, ...].
            noise: float32[n, actions], standard normal.

        Returns:
            Actions in (-1, 1), float32[n, actions], and their log-probabilities float32[n].
        """
        mean, log_std = self.forward(obs)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        # log N(raw) - log |d tanh(raw) / d raw|, where 1 - tanh(x)^2 is
        # 4 / (exp(x) + exp(-x))^2, which stays finite when tanh is rounded to 1.
        constant = -0.5 * noise.square() - (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        log_prob = constant - log_std + 2 * (raw + F.softplus(-2 * raw))
        return raw.tanh(), log_prob.sum(-1)


class TwinCritic(nn.Module):
    """Two action-value networks of one shape. Both use the same convolutions for images.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_size: Numbers of an action.
        hidden_sizes: Width of each hidden layer; ReLU follows each.
    """

    def __init__(self, obs_shape: Any, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoder = make_encoder(obs_shape, ())
        widths = [self.encoder.width + action_size, *hidden_sizes, 1]
        self.critics = nn.ModuleList(MLP(widths) for _ in range(2))

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        """Return both values of each action.

        Args:
            obs: Observations [n, ...].
            action: float32[n, actions], in [-1, 1].

        Returns:
            float32[2, n].
        """
        inputs = torch.cat((self.encoder.forward(obs), action), -1)
        return torch.cat([critic.forward(inputs) for critic in self.critics], -1).T


def twin_loss(errors: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean squared errors of both critics, added up.

    Args:
        errors: TD errors float32[2, n].
        weights: Importance weights [n] of the rows; None for equal ones.
    """
    squares = errors.square()
    if weights is not None:
        squares = squares * weights.to(squares)
    return squares.mean(1).sum()


class Temperature(nn.Module):
    """The weight of the entropy, stored as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))


class SACPolicy(BasePolicy):
    """SAC with two critics and an automatic temperature, type key ``sac``.

    Actions are scaled to the bounds of the Box. Probabilities, entropies and the critics use
    actions in [-1, 1].

    Source: Haarnoja et al. 2018b (arXiv:1812.05905), algorithm 1. Difference: the logarithm of the
    temperature is trained, and it replaces the temperature as the factor in eq. 18.
    """

    Config: ClassVar[type[SACSection]] = SACSection
    section: SACSection
    is_data_parallel = True
    trains_on = frozenset({"rows"})
    monitored = (*_LOGGED, "grad_norm")
    model_from_spaces = staticmethod(partial(box_model, "sac"))

    def build(self) -> None:
        self._box = ActionBox(self.section.model, is_finite=True)
        self.build_networks(-float(self._box.size))

    def build_networks(self, target_entropy: float) -> None:
        """Make the networks, and their optimizers if the policy learns.

        Args:
            target_entropy: Used if ``learn.target_entropy`` is None.
        """
        self._actor = self.make_actor().to(self.device)
        if self.learns:
            learn = self.section.learn
            self._actor_optimizer = Adam(self._actor, learn.learning_rate_policy)
            self._critic = self.make_critic().to(self.device)
            self._critic_optimizer = Adam(self._critic, learn.learning_rate_q)
            self._target, self._target_flat = target_of(self._critic)
            # Gradients pass through it to the actions, and not to its own weights.
            self._frozen_critic = frozen(self._critic)
            self._temperature = Temperature(learn.alpha).to(self.device)
            self._temperature_optimizer = Adam(self._temperature, learn.learning_rate_alpha)
            asked = learn.target_entropy
            self._target_entropy = target_entropy if asked is None else asked
        self._acting_network = frozen(self._actor)

    def make_actor(self) -> Any:
        """Return a new actor; a subclass may return its own subclass of ``SquashedGaussian``."""
        return SquashedGaussian(*self._sizes())

    def make_critic(self) -> nn.Module:
        """Return a new module that is called as ``TwinCritic``; subclasses may return another."""
        return TwinCritic(*self._sizes())

    def _sizes(self) -> tuple[Any, int, list[int]]:
        model = self.section.model
        return model.observation, self._box.size, model.encoder_hidden_size_list

    def state(self) -> Mapping[str, Stateful]:
        if not self.learns:
            return {"model": self._actor}
        return {
            "model": self._actor,
            "critic": self._critic,
            "target_critic": self._target,
            "temperature": self._temperature,
            "actor_optimizer": self._actor_optimizer,
            "critic_optimizer": self._critic_optimizer,
            "temperature_optimizer": self._temperature_optimizer,
        }

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        """Return actions within the bounds of the Box.

        Args:
            obs: As in ``BasePolicy.act``, like ``env_ids``.
            explore: Whether actions are drawn; False returns the actions of the mean.

        Raises:
            NonFiniteError: the mean or the deviation of an action is NaN or infinite.
        """
        mean, log_std = self._acting_network.forward(self.tensor(obs))
        raw = torch.addcmul(mean, log_std.exp(), self._noise(len(mean))) if explore else mean
        values = self.array(raw)
        self.check_finite(values, obs, env_ids)
        return {"action": self._box.scale(np.tanh(values))}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        mean, _ = network.forward(obs)
        return (self._box.scale_tensor(mean.tanh()),)

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        section = self.section
        return nstep_samples(columns, ends, gamma=section.discount_factor, nstep=section.nstep)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train both critics, the actor and the temperature once.

        Args:
            batch: Samples with ``obs`` [n, ...], ``action`` [n, ...], ``reward`` [n] (n-step),
                ``next_obs`` [n, ...], ``discount`` [n] (0: no bootstrap) and perhaps the importance
                weights ``IS`` [n], which weight the critics' loss.

        Returns:
            Scalars; ``critic_loss`` is the sum over both critics, ``grad_norm`` the norm of its
            gradient; with ``policy.priority`` also ``priority``, a list of the mean of both
            absolute TD errors.

        Raises:
            NonFiniteError: a loss or its gradient is NaN or infinite; that step was not taken.
        """
        rows = len(batch["action"])
        self.check_shapes(batch, action=(rows, *self._box.shape), reward=(rows,), discount=(rows,))
        obs, next_obs = self.tensor(batch["obs"]), self.tensor(batch["next_obs"])
        action = self._box.unscale(batch["action"])
        alpha = self._temperature.log_alpha.detach().exp()
        noise, next_noise = self._noise(2 * rows).chunk(2)
        next_action, next_log_prob = self._acting_network.sample(next_obs, next_noise)
        next_value = self._target.forward(next_obs, next_action).amin(0) - alpha * next_log_prob
        target = torch.addcmul(batch["reward"].float(), batch["discount"].float(), next_value)
        errors = self._critic.forward(obs, action) - target
        critic_loss = 0.5 * twin_loss(errors, batch.get("IS"))
        norm = self._critic_optimizer.minimize(critic_loss)

        drawn, log_prob = self._actor.sample(obs, noise)
        value = self._frozen_critic.forward(obs, drawn).amin(0)
        actor_loss = (alpha * log_prob - value).mean()
        self._actor_optimizer.minimize(actor_loss)

        means = torch.stack((value, target, -log_prob)).detach().mean(1)
        entropy = means[2]
        surplus = (entropy - self._target_entropy).reshape(1)
        temperature_loss = self._temperature.log_alpha.detach() * surplus
        if self.section.learn.auto_alpha:
            self._temperature_optimizer.descend(temperature_loss[0], surplus)
        self._target_flat.lerp_(self._critic_optimizer.flat, self.section.learn.target_theta)

        losses = torch.stack((critic_loss, actor_loss)).detach()
        logged = torch.cat((losses, temperature_loss, alpha, means)).tolist()
        log_vars: dict[str, Any] = dict(zip(_LOGGED, [logged[0] + logged[1], *logged], strict=True))
        log_vars["grad_norm"] = norm
        if self.section.priority:
            log_vars["priority"] = errors.detach().abs().mean(0).tolist()
        return log_vars

    def _noise(self, rows: int) -> Tensor:
        noise = self.rng.standard_normal((rows, self._box.size), np.float32)
        return torch.from_numpy(noise).to(self.device)
