"""Proximal policy optimisation, with and without a recurrent network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dingsdk.config import Count, Finite, Positive, Scheduled, Share
from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import legal_actions
from dingsdk.data.pytree import part_of
from dingsdk.policy.adam import Adam
from dingsdk.policy.base import BasePolicy
from dingsdk.policy.distributions import ActionModelSection, action_model, make_distribution
from dingsdk.policy.networks import ActorCritic, RecurrentActorCritic, frozen
from dingsdk.policy.returns import gae
from dingsdk.policy.sections import (
    CollectSection,
    Effective,
    LearnSection,
    PolicySection,
    Weight,
)
from dingsdk.policy.weights import Stateful

_LOGGED = ("total_loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class PPOModelSection(ActionModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of PPO.

    Attributes:
        activation: Activation after each hidden layer.
        critic_hidden_size_list: Widths of the critic's hidden layers; None for those of the actor.
            If images or a recurrent network make both share their layers, the critic gets these
            layers after the shared ones.
        value_norm: Whether the critic learns returns that are scaled by their mean and deviation.
            Both are computed from the returns of all trainings, and saved with the weights.
        recurrent: Recurrent layer after the hidden layers; None for none.
        recurrent_size: Units of the recurrent layer.
    """

    activation: Literal["tanh", "relu"] = "tanh"
    critic_hidden_size_list: list[Count] | None = None
    value_norm: bool = False

    recurrent: Literal["gru", "lstm"] | None = None
    recurrent_size: Count = 64


class PPOLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of PPO.

    Attributes:
        batch_size: Samples of one minibatch. With a recurrent network it is approximate, as a
            minibatch consists of whole sequences.
        sequence_len: Largest number of steps in a sequence that trains a recurrent network.
        epoch_per_collect: Passes over the samples of a collect.
        learning_rate: Step size of Adam.
        clip_ratio: Largest change of an action's probability ratio that improves the objective.
        value_clip: Whether the value loss clips the change of a value to ``clip_ratio``; with
            ``model.value_norm``, in deviations.
        value_weight: Weight of the value loss in the total loss.
        entropy_weight: Weight of the entropy bonus in the total loss.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
        target_kl: Training on a collect stops after a minibatch whose ``approx_kl`` is larger than
            this; None for no limit.
    """

    epoch_per_collect: Count = 10
    sequence_len: Count = 32
    learning_rate: Scheduled[Finite] = 3e-4
    clip_ratio: Scheduled[Effective] = 0.2
    value_clip: bool = False
    value_weight: Scheduled[Weight] = 0.5
    entropy_weight: Scheduled[Weight] = 0.01
    grad_clip_norm: Scheduled[Effective | None] = 0.5
    target_kl: Scheduled[Positive | None] = None


class PPOCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of PPO."""

    n_sample: Count | None = 2048


class PPOSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of PPO.

    Attributes:
        on_policy: Only true: PPO trains on what its newest policy collected.
        priority: Only false: PPO trains on all samples of a collect, without a replay buffer. For
            priorities choose an off-policy algorithm, such as ``dqn``.
        nstep: Only 1: ``gae_lambda`` sets how far ahead rewards count.
        gae_lambda: Lambda of generalized advantage estimation: the weight of the next step's
            advantage.
    """

    type: str = "ppo"
    on_policy: Literal[True] = True
    priority: Literal[False] = False
    nstep: Literal[1] = 1
    gae_lambda: Share = 0.95
    model: PPOModelSection = PPOModelSection()  # type: ignore[assignment]
    learn: PPOLearnSection = PPOLearnSection()
    collect: PPOCollectSection = PPOCollectSection()


class PPOPolicy(BasePolicy):
    """PPO with a clipped objective, type key ``ppo``.

    Each ``learn`` makes ``epoch_per_collect`` passes over the samples in random minibatches; each
    minibatch counts as an iteration. Advantages are normalised in each minibatch. A recurrent
    network is trained on sequences within an episode, each from the state that was recorded before
    its first step. If observations have an ``action_mask``, illegal actions have the probability 0.

    Source: Schulman et al. 2017, eq. 7 and 9, algorithm 1. Clipped values: Engstrom et al. 2020,
    section 3. ``approx_kl``: Schulman 2020, "Approximating KL divergence", estimator k3.
    """

    Config: ClassVar[type[PPOSection]] = PPOSection
    section: PPOSection
    monitored = (*_LOGGED, "grad_norm")
    model_from_spaces = staticmethod(partial(action_model, "ppo"))

    _network: ActorCritic | RecurrentActorCritic

    def build(self) -> None:
        learn = self.section.learn
        self._network = self.make_network().to(self.device)
        if isinstance(self._network, RecurrentActorCritic):
            self.state_size = self._network.state_size
        if self.learns:
            self._optimizer = Adam(
                self._network, learn.learning_rate, learn.grad_clip_norm, eps=1e-5
            )
        self._acting_network = frozen(self._network)

    def make_network(self) -> ActorCritic | RecurrentActorCritic:
        """Return a new network; a subclass may return its own subclass of one of the two."""
        model = self.section.model
        sizes = model.observation, make_distribution(model), model.encoder_hidden_size_list
        options: dict[str, Any] = {
            "critic_sizes": model.critic_hidden_size_list,
            "is_tanh": model.activation == "tanh",
            "scales_values": model.value_norm,
        }
        if model.recurrent is None:
            return ActorCritic(*sizes, **options)
        return RecurrentActorCritic(*sizes, model.recurrent, model.recurrent_size, **options)

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        return {**found, "optimizer": self._optimizer} if self.learns else found

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        state: NDArray[np.float32] | None = None,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        legal_actions(obs, env_ids)
        outputs, value, next_state = self._forward(obs, state)
        self.check_finite(outputs, obs, env_ids)
        found = {} if next_state is None else {"next_state": next_state}
        distribution = self._acting_network.distribution
        if not explore:
            return {"action": distribution.mode(outputs), **found}
        return {**distribution.draw(outputs, self.rng), "value": value, **found}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        outputs, _, *after = network.forward(obs, *state)
        return (network.distribution.mode_tensor(outputs), *after)

    def _forward(
        self, obs: Any, state: NDArray[np.float32] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32] | None]:
        """Return outputs, values, and the next states of a recurrent network."""
        tensor, network = self.tensor(obs), self._acting_network
        if isinstance(network, ActorCritic):
            outputs, value = network.forward(tensor)
            return self.array(outputs), self.array(value), None
        outputs, value, after = network.forward(tensor, self.tensor(state))
        return self.array(outputs), self.array(value), self.array(after)

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        last = ends - 1
        next_obs, state = part_of(columns.pop("next_obs"), last), None
        if self.state_size:
            _, _, state = self._forward(part_of(columns["obs"], last), columns["state"][last])
            # The first rows of pieces, and of the parts that long pieces are cut into.
            starts = np.concatenate(([0], ends[:-1]))
            positions = np.arange(ends[-1]) - starts.repeat(ends - starts)
            columns["is_first"] = positions % self.section.learn.sequence_len == 0
        bootstrap = self._forward(next_obs, state)[1]
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
        learn, column = self.section.learn, self._network.distribution.column
        names = ("obs", column, "log_prob", "value", "advantage", "return")
        trained = {name: batch[name] for name in names}
        trained["obs"] = self.tensor(batch["obs"])
        size = (len(batch["advantage"]),)
        self.check_shapes(batch, advantage=size, log_prob=size, value=size)
        if (shape := self._network.distribution.shape) is not None:
            self.check_shapes(batch, **{column: (*size, *shape)})
        sequences = None
        if isinstance(self._network, RecurrentActorCritic):
            is_first = batch["is_first"].clone()
            is_first[0] = True
            starts = is_first.nonzero().squeeze(1)
            lengths = torch.diff(starts, append=starts.new_tensor([len(is_first)]))
            sequences = starts, lengths, batch["state"][starts]
        scale = self._network.value_scale
        if scale is not None:
            # The outputs of the network when it collected, before the statistics change.
            trained["value"] = scale.scale(batch["value"])
            if torch.isfinite(batch["return"]).all():
                scale.measure(batch["return"])
            trained["return"] = scale.scale(batch["return"])
        logs: list[dict[str, Any]] = []
        for _ in range(learn.epoch_per_collect):
            for rows, *unrolled in self._minibatches(len(batch["advantage"]), sequences):
                part = {name: part_of(each, rows) for name, each in trained.items()}
                logs.append(self._step(part, *unrolled))
                if learn.target_kl is not None and logs[-1]["approx_kl"] > learn.target_kl:
                    return logs
        return logs

    def _minibatches(
        self, size: int, sequences: tuple[Tensor, Tensor, Tensor] | None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rows of each minibatch, with ``sequences`` also states and mask for ``unroll``.

        ``sequences`` holds the first row, length and first state of each sequence; None draws
        single rows.
        """
        count = max(1, round(size / self.section.learn.batch_size))
        drawn = size if sequences is None else len(sequences[0])
        order = torch.from_numpy(self.rng.permutation(drawn)).to(self.device)
        # Minibatches have almost equal sizes: a step on a few leftover rows would be noisy.
        for part in torch.tensor_split(order, min(count, drawn)):
            if sequences is None:
                yield (part,)
                continue
            starts, lengths, states = (each[part] for each in sequences)
            times = torch.arange(int(lengths.max()), device=self.device).unsqueeze(1)
            mask = times < lengths
            yield (starts + times)[mask], states, mask

    def _step(
        self,
        batch: Mapping[str, Any],
        state: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Any]:
        learn, network = self.section.learn, self._network
        obs = batch["obs"]
        if isinstance(network, ActorCritic):
            outputs, value = network.forward(obs)
        else:
            assert state is not None
            assert mask is not None
            outputs, value = network.unroll(obs, state, mask)
        distribution = network.distribution
        log_prob, entropies = distribution.evaluate(outputs, batch[distribution.column])
        advantage = batch["advantage"]
        if len(advantage) > 1:  # a single one would become 0
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        log_ratio = log_prob - batch["log_prob"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - learn.clip_ratio, 1 + learn.clip_ratio)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        if network.value_scale is not None:
            value = network.value_scale.scale(value)
        errors = (value - batch["return"]).square()
        if learn.value_clip:
            change = (value - batch["value"]).clamp(-learn.clip_ratio, learn.clip_ratio)
            errors = torch.maximum(errors, (batch["value"] + change - batch["return"]).square())
        value_loss, entropy = errors.mean(), entropies.mean()
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
