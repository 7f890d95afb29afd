"""TD3: a deterministic actor, two critics, delayed updates and smoothed targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Count, Finite, NotNegative, Scheduled, Whole
from dingsdk.data import SampleBatch
from dingsdk.policy import (
    MLP,
    ActionBox,
    Adam,
    BasePolicy,
    BoxModelSection,
    CollectSection,
    LearnSection,
    PolicySection,
    Stateful,
    TwinCritic,
    box_model,
    frozen,
    make_encoder,
    nstep_samples,
    target_of,
    twin_loss,
)

_LOGGED = ("total_loss", "critic_loss", "actor_loss", "q_value", "target_q_value")


class TD3ModelSection(BoxModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of TD3.

    Attributes:
        encoder_hidden_size_list: Widths of the hidden layers of the actor and of both critics; for
            images they follow the convolutions.
    """

    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [256, 256])


class TD3LearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of TD3.

    Attributes:
        update_per_collect: Iterations after each collect; 8 for 8 samples is one for every env
            step, as in the paper.
        batch_size: Samples of one train iteration.
        learning_rate_actor: Step size of the actor's Adam.
        learning_rate_critic: Step size of the critics' Adam.
        actor_update_freq: Updates of the critics between two updates of the actor and the target
            networks.
        target_theta: Share by which the target networks move towards the trained weights at each
            update of the actor.
        target_noise: Standard deviation of the noise on the actions of targets, which are in
            [-1, 1].
        noise_clip: Largest magnitude of that noise.
    """

    update_per_collect: Count = 8
    batch_size: Count = 256
    learning_rate_actor: Scheduled[Finite] = 3e-4
    learning_rate_critic: Scheduled[Finite] = 3e-4
    actor_update_freq: Count = 2
    target_theta: Scheduled[Annotated[float, Meta(ge=1e-6, le=1)]] = 0.005
    target_noise: Scheduled[NotNegative] = 0.2
    noise_clip: Scheduled[NotNegative] = 0.5


class TD3CollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of TD3.

    Attributes:
        noise: Standard deviation of the noise on collected actions, which are in [-1, 1].
    """

    n_sample: Count | None = 8
    noise: NotNegative = 0.1


class TD3Section(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of TD3."""

    type: str = "td3"
    random_collect_size: Whole = 1000
    model: TD3ModelSection = TD3ModelSection()  # type: ignore[assignment]
    learn: TD3LearnSection = TD3LearnSection()
    collect: TD3CollectSection = TD3CollectSection()


class DeterministicActor(nn.Module):
    """Maps observations to actions in [-1, 1], by tanh; arguments as ``TwinCritic``."""

    def __init__(self, obs_shape: Any, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoder = make_encoder(obs_shape, ())
        self.net = MLP([self.encoder.width, *hidden_sizes, action_size])

    def forward(self, obs: Any) -> Tensor:
        """Return float32[n, actions]."""
        return self.net.forward(self.encoder.forward(obs)).tanh()


class TD3Policy(BasePolicy):
    """Twin delayed deep deterministic policy gradient, type key ``td3``.

    Actions are scaled to the bounds of the Box. The noise and the critics use actions in [-1, 1].

    Source: Fujimoto et al. 2018 (arXiv:1802.09477), algorithm 1.
    """

    Config: ClassVar[type[TD3Section]] = TD3Section
    section: TD3Section
    is_data_parallel = True
    trains_on = frozenset({"rows"})
    monitored = (*_LOGGED, "grad_norm")
    model_from_spaces = staticmethod(partial(box_model, "td3"))

    def build(self) -> None:
        self._box = ActionBox(self.section.model, is_finite=True)
        self._actor = self.make_actor().to(self.device)
        if self.learns:
            learn = self.section.learn
            self._critic = self.make_critic().to(self.device)
            self._actor_optimizer = Adam(self._actor, learn.learning_rate_actor)
            self._critic_optimizer = Adam(self._critic, learn.learning_rate_critic)
            self._target_actor, self._target_actor_flat = target_of(self._actor)
            self._target_critic, self._target_critic_flat = target_of(self._critic)
            # Gradients pass through it to the actions, and not to its own weights.
            self._frozen_critic = frozen(self._critic)
            self._actor_loss = 0.0
        self._acting_network = frozen(self._actor)

    def make_actor(self) -> nn.Module:
        """Return a new module that is called as ``DeterministicActor``."""
        return DeterministicActor(*self._sizes())

    def make_critic(self) -> nn.Module:
        """Return a new module that is called as ``TwinCritic``."""
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
            "target_model": self._target_actor,
            "target_critic": self._target_critic,
            "actor_optimizer": self._actor_optimizer,
            "critic_optimizer": self._critic_optimizer,
        }

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        actions = self.array(self._acting_network.forward(self.tensor(obs)))
        self.check_finite(actions, obs, env_ids)
        if explore:
            noise = self.rng.standard_normal(actions.shape, np.float32)
            actions = (actions + np.float32(self.section.collect.noise) * noise).clip(-1, 1)
        return {"action": self._box.scale(actions)}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        return (self._box.scale_tensor(network.forward(obs)),)

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        section = self.section
        return nstep_samples(columns, ends, gamma=section.discount_factor, nstep=section.nstep)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train both critics once and, every ``actor_update_freq`` times, the actor.

        Args:
            batch: Samples with ``obs`` [n, ...], ``action`` [n, ...], ``reward`` [n] (n-step),
                ``next_obs`` [n, ...], ``discount`` [n] (0: no bootstrap) and perhaps the importance
                weights ``IS`` [n], which weight the critics' loss.

        Returns:
            Scalars; ``critic_loss`` is the sum over both critics, ``actor_loss`` that of the last
            update of the actor; with ``policy.priority`` also ``priority``, a list of the mean of
            both absolute TD errors.

        Raises:
            NonFiniteError: a loss or its gradient is NaN or infinite; that step was not taken.
        """
        learn, rows = self.section.learn, len(batch["action"])
        self.check_shapes(batch, action=(rows, *self._box.shape), reward=(rows,), discount=(rows,))
        obs, action = self.tensor(batch["obs"]), self._box.unscale(batch["action"])
        target = self.targets(batch)
        errors = self._critic.forward(obs, action) - target
        critic_loss = twin_loss(errors, batch.get("IS"))
        norm = self._critic_optimizer.minimize(critic_loss)
        if self._critic_optimizer.updates % learn.actor_update_freq == 0:
            value = self._frozen_critic.forward(obs, self._actor.forward(obs))[0]
            actor_loss = -value.mean()
            self._actor_optimizer.minimize(actor_loss)
            self._actor_loss = float(actor_loss.detach())
            self._target_actor_flat.lerp_(self._actor_optimizer.flat, learn.target_theta)
            self._target_critic_flat.lerp_(self._critic_optimizer.flat, learn.target_theta)
        values = (errors[0] + target).detach()
        loss, q_value, target_value = torch.stack(
            (critic_loss.detach(), values.mean(), target.mean())
        ).tolist()
        means = (loss + self._actor_loss, loss, self._actor_loss, q_value, target_value)
        log_vars: dict[str, Any] = dict(zip(_LOGGED, means, strict=True), grad_norm=norm)
        if self.section.priority:
            log_vars["priority"] = errors.detach().abs().mean(0).tolist()
        return log_vars

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the targets of both critics, float32[n], with noise on the next actions."""
        learn, next_obs = self.section.learn, self.tensor(batch["next_obs"])
        drawn = self.rng.standard_normal((len(batch["action"]), self._box.size), np.float32)
        noise = torch.from_numpy(drawn * np.float32(learn.target_noise)).to(self.device)
        noise = noise.clamp(-learn.noise_clip, learn.noise_clip)
        next_action = (self._target_actor.forward(next_obs) + noise).clamp(-1, 1)
        next_value = self._target_critic.forward(next_obs, next_action).amin(0)
        return torch.addcmul(batch["reward"].float(), batch["discount"].float(), next_value)
