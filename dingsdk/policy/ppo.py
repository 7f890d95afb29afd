"""Proximal policy optimisation for flat observations and discrete actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dingsdk.config import Count, Finite, NotNegative, Positive, Share
from dingsdk.data import SampleBatch
from dingsdk.policy.adam import Adam
from dingsdk.policy.base import BasePolicy, Stateful
from dingsdk.policy.networks import ActorCritic, frozen
from dingsdk.policy.returns import gae
from dingsdk.policy.sections import (
    CollectSection,
    LearnSection,
    ModelSection,
    PolicySection,
)
from dingsdk.policy.spaces import discrete_model

_COLUMNS = ("obs", "action", "log_prob", "advantage", "return")
_LOGGED = ("total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class PPOLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of PPO.

    Attributes:
        batch_size: Samples of one minibatch.
        epoch_per_collect: Passes over what a collect gave.
        learning_rate: Step size of Adam.
        clip_ratio: Largest change of an action's probability ratio that is rewarded.
        value_weight: Weight of the value loss.
        entropy_weight: Weight of the entropy bonus.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
    """

    epoch_per_collect: Count = 10
    learning_rate: Finite = 3e-4
    clip_ratio: Positive = 0.2
    value_weight: NotNegative = 0.5
    entropy_weight: NotNegative = 0.01
    grad_clip_norm: Positive | None = 0.5


class PPOCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of PPO."""

    n_sample: Count | None = 2048


class PPOSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of PPO.

    Attributes:
        gae_lambda: Weight of the next step's advantage.
    """

    type: str = "ppo"
    on_policy: Literal[True] = True
    gae_lambda: Share = 0.95
    model: ModelSection = ModelSection()  # type: ignore[assignment]
    learn: PPOLearnSection = PPOLearnSection()
    collect: PPOCollectSection = PPOCollectSection()


class PPOPolicy(BasePolicy):
    """PPO with a clipped objective, type key ``ppo``.

    Each ``learn`` makes ``epoch_per_collect`` passes over the samples in random minibatches; each
    minibatch counts as an iteration. Advantages are normalised in each minibatch.

    Source: Schulman et al. 2017, eq. 7 and 9, algorithm 1.
    """

    Config: ClassVar[type[PPOSection]] = PPOSection
    section: PPOSection
    monitored = (*_LOGGED, "grad_norm")
    model_from_spaces = staticmethod(partial(discrete_model, "ppo"))

    def build(self) -> None:
        model, learn = self.section.model, self.section.learn
        self._network = ActorCritic(
            model.observation, model.action_count, model.encoder_hidden_size_list
        ).to(self.device)
        if self.learns:
            self._optimizer = Adam(
                self._network, learn.learning_rate, learn.grad_clip_norm, eps=1e-5
            )
        self._acting_network = frozen(self._network)

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        return {**found, "optimizer": self._optimizer} if self.learns else found

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        logits, value = self._acting_network.forward(self.tensor(obs))
        log_probs = self.array(torch.log_softmax(logits, -1))
        self.check_finite(log_probs, obs, env_ids)
        if not explore:
            return {"action": log_probs.argmax(1)}
        # The largest of log-probabilities with Gumbel noise is a draw from their distribution.
        action = (log_probs + self.rng.gumbel(size=log_probs.shape)).argmax(1)
        log_prob = log_probs[np.arange(len(action)), action]
        return {"action": action, "log_prob": log_prob, "value": self.array(value)}

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        last = ends - 1
        next_obs = columns.pop("next_obs").take(last, axis=0)
        bootstrap = self.array(self._acting_network.values(self.tensor(next_obs)))
        columns["advantage"] = gae(
            columns["reward"],
            columns["value"],
            bootstrap * ~columns.pop("terminated")[last],
            ends,
            gamma=self.section.discount_factor,
            gae_lambda=self.section.gae_lambda,
        )
        columns["return"] = columns["advantage"] + columns["value"]
        return SampleBatch(columns)

    def learn(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        learn, size = self.section.learn, len(batch["action"])
        logs = []
        for _ in range(learn.epoch_per_collect):
            order = torch.from_numpy(self.rng.permutation(size)).to(self.device)
            # Of almost equal sizes: a few rows left over would make a noisy step.
            for rows in torch.tensor_split(order, max(1, round(size / learn.batch_size))):
                logs.append(self._step({key: batch[key][rows] for key in _COLUMNS}))
        return logs

    def _step(self, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        learn = self.section.learn
        logits, value = self._network.forward(batch["obs"].float())
        log_probs = torch.log_softmax(logits, -1)
        chosen = log_probs.gather(1, batch["action"].long().unsqueeze(1)).squeeze(1)
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        log_ratio = chosen - batch["log_prob"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - learn.clip_ratio, 1 + learn.clip_ratio)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = (value - batch["return"]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        loss = policy_loss + learn.value_weight * value_loss - learn.entropy_weight * entropy
        norm = self._optimizer.minimize(loss)
        with torch.no_grad():
            means = torch.stack(
                [
                    *(loss, policy_loss, value_loss, entropy),
                    (ratio - 1 - log_ratio).mean(),
                    (ratio != clipped).float().mean(),
                ]
            ).tolist()
        return dict(zip(_LOGGED, means, strict=True), grad_norm=norm)
