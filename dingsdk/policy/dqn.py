"""Deep Q-learning: double estimate, n-step returns, target network, epsilon-greedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Count, Finite, Scheduled
from dingsdk.data import SampleBatch
from dingsdk.data.action_mask import draw_legal, legal_actions
from dingsdk.data.capture import Savable
from dingsdk.policy.adam import Adam
from dingsdk.policy.base import BasePolicy
from dingsdk.policy.networks import QNetwork, frozen, target_of
from dingsdk.policy.returns import nstep_samples
from dingsdk.policy.sections import (
    CollectSection,
    Effective,
    EpsilonSchedule,
    LearnSection,
    ModelSection,
    OtherSection,
    PolicySection,
)
from dingsdk.policy.spaces import discrete_model
from dingsdk.policy.weights import Stateful

_BLOCK = 1024
"""Number of random numbers that are drawn at once."""
_SMALLEST_EPS = 1e-9
"""Smallest ``eps``: below it a uniform number of 53 bits has no bits left for the action."""


class EpsilonGreedy(Savable):
    """Replaces actions by uniformly random ones with a given probability.

    Draws random numbers in blocks, and computes the decisions of a whole block at once. With a few
    envs this takes a tenth of the time that it takes at every step (2026-11).

    Args:
        action_count: Number of actions, >= 1.
    """

    saved = ("_draws", "_used")

    def __init__(self, action_count: int) -> None:
        self._action_count = action_count
        self._draws: NDArray[np.float64] = np.empty(0)
        self._used = 0
        # The eps for which the decisions of the block were computed.
        self._eps: float | None = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._eps = None

    def explore(
        self,
        actions: NDArray[np.int64],
        eps: float,
        rng: np.random.Generator,
        legal: NDArray[np.bool_] | None = None,
    ) -> None:
        """Replace, in place, each of ``actions`` int64[n] with probability ``eps`` in [0, 1].

        Args:
            actions: In ``[0, action_count)``.
            eps: Probability of a random action, which may equal the replaced one.
            rng: Generator for the next block.
            legal: bool[n, action_count], the actions to choose from, at least one per row; None
                for all.
        """
        if eps <= _SMALLEST_EPS:
            return
        count = len(actions)
        if self._used + count > len(self._draws):
            left = self._draws[self._used :]
            self._draws, self._used = np.concatenate((left, rng.random(max(count, _BLOCK)))), 0
            self._eps = None
        if eps != self._eps:
            self._decide(eps)
        rows = slice(self._used, self._used + count)
        self._used += count
        explores = self._explores[rows]
        if legal is None:
            # Takes half the time of copyto, and no more than a check whether any row explores.
            np.putmask(actions, explores, self._random_actions[rows])
        elif explores.any():
            np.putmask(actions, explores, draw_legal(legal, self._draws[rows] / eps))

    def _decide(self, eps: float) -> None:
        count = self._action_count
        self._eps = eps
        self._explores = self._draws < eps
        # A draw below eps is uniform in [0, eps), so it can choose the action too.
        chosen = (self._draws * (count / eps)).astype(np.int64)
        self._random_actions = np.minimum(chosen, count - 1)


class DQNModelSection(ModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of DQN.

    Attributes:
        dueling: Whether the network has separate heads for the state value and the advantages.
    """

    dueling: bool = False


class DQNLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of DQN.

    Attributes:
        update_per_collect: Iterations after each collect; 16 for 64 samples is one for every four
            env steps, as in Mnih et al. 2015.
        learning_rate: Step size of Adam.
        loss: Loss of the TD error: Huber, or its square.
        huber_delta: TD error at which the Huber loss turns linear.
        double: Whether to use double DQN: the trained network chooses the best next action, and
            the target network gives its value.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
        target_update_freq: Iterations between two copies to the target network.
        target_theta: Share by which the target network moves towards the trained weights in each
            iteration, instead of copies; None for copies.
    """

    update_per_collect: Count = 16
    learning_rate: Scheduled[Finite] = 1e-3
    loss: Literal["huber", "mse"] = "huber"
    huber_delta: Scheduled[Effective] = 1.0
    double: bool = True
    grad_clip_norm: Scheduled[Effective | None] = 10.0
    target_update_freq: Count = 100
    target_theta: Scheduled[Annotated[float, Meta(ge=1e-6, le=1)] | None] = None


class DQNCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of DQN."""

    n_sample: Count | None = 64


class DQNOtherSection(OtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of DQN.

    Attributes:
        eps: Probability of a random action, as a schedule over env steps.
    """

    eps: EpsilonSchedule = EpsilonSchedule()


class DQNSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of DQN."""

    type: str = "dqn"
    model: DQNModelSection = DQNModelSection()  # type: ignore[assignment]
    learn: DQNLearnSection = DQNLearnSection()
    collect: DQNCollectSection = DQNCollectSection()
    other: DQNOtherSection = DQNOtherSection()


class TDLoss(NamedTuple):
    """The loss of a batch, as ``DQNPolicy.td_loss`` returns it.

    Attributes:
        loss: The scalar to minimise, with its gradient.
        value: float32[n], the values of the actions that were taken.
        target: float32[n], the values that they are trained towards, without gradients.
        priority: float32[n], the priorities of the samples, without gradients; None: the distance
            of ``value`` and ``target``.
    """

    loss: Tensor
    value: Tensor
    target: Tensor
    priority: Tensor | None = None


class DQNPolicy(BasePolicy):
    """DQN for discrete actions, type key ``dqn``.

    A subclass changes the algorithm with ``make_network``, ``action_values`` and ``td_loss``.

    If observations have an ``action_mask``, illegal actions are neither chosen nor used in targets.

    Source: Mnih et al. 2015; double estimate from van Hasselt et al. 2016, eq. 4.
    """

    Config: ClassVar[type[DQNSection]] = DQNSection
    section: DQNSection
    is_data_parallel = True
    trains_on = frozenset({"rows"})
    monitored = ("cur_lr", "total_loss", "q_value", "target_q_value", "grad_norm")
    model_from_spaces = staticmethod(partial(discrete_model, "dqn"))

    def build(self) -> None:
        self._network = self.make_network().to(self.device)
        self._exploration = EpsilonGreedy(self.section.model.action_count)
        self.acting_parts["exploration"] = self._exploration
        self._start = int(self.section.model.first_actions[0])
        if self.learns:
            learn = self.section.learn
            self._optimizer = Adam(self._network, learn.learning_rate, learn.grad_clip_norm)
            self._target, self._target_flat = target_of(self._network)
        self._acting_network = frozen(self._network)

    def make_network(self) -> nn.Module:
        """Return a new network: ``forward(obs)`` gives action values float32[n, actions].

        Subclasses may return another module. ``obs`` is what ``self.tensor`` returns.
        """
        model = self.section.model
        return QNetwork(
            model.observation,
            model.action_count,
            model.encoder_hidden_size_list,
            dueling=model.dueling,
        )

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        if self.learns:
            found.update(target_model=self._target, optimizer=self._optimizer)
        return found

    def setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"eps": self.section.other.eps(info.get("envstep", 0))}

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        eps: float | None = None,
        state: NDArray[np.float32] | None = None,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        """Return the best action of each row, or with probability ``eps`` a random one.

        Args:
            obs: As in ``BasePolicy.act``, like ``env_ids``, ``explore`` and ``state``.
            eps: In [0, 1]; None for the start of the schedule. Not used in evaluations.

        Raises:
            NonFiniteError: an action value is NaN or infinite.
            SchemaMismatchError: ``obs["action_mask"]`` allows no action.
        """
        legal = legal_actions(obs, env_ids)
        network, after = self._acting_network, None
        if state is None:
            found = self.action_values(network, self.tensor(obs), explore=explore)
        else:
            found, after = self._step(network, self.tensor(obs), self.tensor(state))
        values = self.array(found)
        self.check_finite(values, obs, env_ids)
        actions: NDArray[np.int64] = values.argmax(1)
        if explore:
            eps = self.section.other.eps(0) if eps is None else eps
            self._exploration.explore(actions, eps, self.rng, legal)
        if self._start:
            actions += self._start
        output: dict[str, NDArray[Any]] = {"action": actions}
        if after is not None:
            output["next_state"] = self.array(after)
        return output

    def action_values(self, network: Any, obs: Any, *, explore: bool) -> Tensor:
        """Return the values float32[n, actions] that ``act`` chooses by.

        Args:
            network: The trained network, without gradients.
            obs: Observations as ``tensor`` returns them.
            explore: As in ``act``.
        """
        values: Tensor = network.forward(obs)
        return values

    def _step(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        """Return action values [n, actions], and for a recurrent network the next state."""
        return (network.forward(obs),)

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        values, *after = self._step(network, obs, *state)
        return values.argmax(1) + self._start, *after

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        section = self.section
        return nstep_samples(columns, ends, gamma=section.discount_factor, nstep=section.nstep)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train once on a batch.

        Args:
            batch: Samples with ``obs`` [n, ...], ``action`` [n], ``reward`` [n] (n-step),
                ``next_obs`` [n, ...], ``discount`` [n] (0: no bootstrap) and perhaps the
                importance weights ``IS`` [n].

        Returns:
            Scalars ``cur_lr``, ``total_loss``, ``q_value``, ``target_q_value``, ``grad_norm``;
            with ``policy.priority`` also ``priority``, a list of absolute TD errors.

        Raises:
            NonFiniteError: the loss or its gradient is NaN or infinite; the weights are kept.
        """
        rows = (len(batch["action"]),)
        self.check_shapes(batch, action=rows, reward=rows, discount=rows)
        found = self.td_loss(batch, self._network, self._acting_network, self._target)
        log_vars = self._update(found.loss, found.value, found.target)
        if self.section.priority:
            priority = found.priority
            if priority is None:
                priority = (found.value.detach() - found.target).abs_()
            log_vars["priority"] = priority.tolist()
        return log_vars

    def td_loss(self, batch: Mapping[str, Any], network: Any, acting: Any, target: Any) -> TDLoss:
        """Return the loss of a batch, and the values that are logged.

        Args:
            batch: As in ``learn``.
            network: The network to train.
            acting: The same weights, without gradients.
            target: The target network, without gradients.
        """
        next_obs = self.tensor(batch["next_obs"])
        next_values = target.forward(next_obs)
        chooser = acting.forward(next_obs) if self.section.learn.double else next_values
        bootstrap = next_values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        goal = torch.addcmul(batch["reward"].float(), batch["discount"].float(), bootstrap)
        values = network.forward(self.tensor(batch["obs"]))
        action = batch["action"].long() - self._start
        value = values.gather(1, action.unsqueeze(1)).squeeze(1)
        return TDLoss(self._loss(value, goal, batch.get("IS")), value, goal)

    def _update(self, loss: Tensor, value: Tensor, target: Tensor) -> dict[str, Any]:
        """Take a step against ``loss``, then update the target network."""
        learn = self.section.learn
        norm = self._optimizer.minimize(loss)
        if learn.target_theta is not None:
            self._target_flat.lerp_(self._optimizer.flat, learn.target_theta)
        elif self._optimizer.updates % learn.target_update_freq == 0:
            self._target_flat.copy_(self._optimizer.flat)
        means = torch.stack((loss.detach(), value.detach().mean(), target.mean())).tolist()
        log_vars = dict(zip(("total_loss", "q_value", "target_q_value"), means, strict=True))
        return log_vars | {"cur_lr": self._optimizer.learning_rate, "grad_norm": norm}

    def _loss(self, value: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        reduction = "mean" if weights is None else "none"
        if self.section.learn.loss == "mse":
            loss = F.mse_loss(value, target, reduction=reduction)
        else:
            delta = self.section.learn.huber_delta
            loss = F.huber_loss(value, target, reduction=reduction, delta=delta)
        return loss if weights is None else (loss * weights.to(loss)).mean()
