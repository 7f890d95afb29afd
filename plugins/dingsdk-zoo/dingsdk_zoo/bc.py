"""Behavioural cloning: supervised learning of the actions in recorded data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Finite
from dingsdk.data import legal_actions
from dingsdk.policy import (
    ActionDistribution,
    ActionModelSection,
    Adam,
    BasePolicy,
    LearnSection,
    PolicySection,
    Stateful,
    action_model,
    frozen,
    make_distribution,
    make_encoder,
    without_illegal,
)


class BCLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of behavioural cloning.

    Attributes:
        learning_rate: Step size of Adam.
    """

    learning_rate: Finite = 1e-3


class BCSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of behavioural cloning.

    Attributes:
        priority: Only false: all samples have the same weight.
        nstep: Only 1: rewards are not used.
    """

    type: str = "bc"
    priority: Literal[False] = False
    nstep: Literal[1] = 1
    model: ActionModelSection = ActionModelSection()  # type: ignore[assignment]
    learn: BCLearnSection = BCLearnSection()


class Actor(nn.Module):
    """An encoder, and a linear head from its features to the outputs of a distribution.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        distribution: Distribution of the actions.
        hidden_sizes: Width of each hidden layer of the encoder.
    """

    def __init__(
        self, obs_shape: Any, distribution: ActionDistribution, hidden_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.encoder = make_encoder(obs_shape, hidden_sizes)
        self.head = nn.Linear(self.encoder.width, distribution.width)

    def forward(self, obs: Any) -> Tensor:
        """Return outputs ``float32[n, distribution.width]`` of observations ``[n, ...]``."""
        return without_illegal(self.head(self.encoder.forward(obs)), obs)


class BCPolicy(BasePolicy):
    """Behavioural cloning, type key ``bc``.

    Learns the most likely distribution of the recorded actions, from the columns ``obs`` and
    ``action``. A run needs the collector ``dataset``. Actions have the distributions of PPO.

    Source: Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous
    Navigation"; the loss is the negative log-likelihood.
    """

    Config: ClassVar[type[BCSection]] = BCSection
    section: BCSection
    is_data_parallel = True
    trains_on = frozenset({"rows"})
    is_offline = True
    monitored: ClassVar[tuple[str, ...]] = ("total_loss", "entropy", "grad_norm")
    model_from_spaces = staticmethod(partial(action_model, "bc"))

    def build(self) -> None:
        self._network = self.make_network().to(self.device)
        if self.learns:
            self._optimizer = Adam(self._network, self.section.learn.learning_rate)
        self._acting_network = frozen(self._network)

    def make_network(self) -> Actor:
        """Return a new network; a subclass may return its own subclass of ``Actor``."""
        model = self.section.model
        distribution = make_distribution(model)
        return Actor(model.observation, distribution, model.encoder_hidden_size_list)

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        return {**found, "optimizer": self._optimizer} if self.learns else found

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        legal_actions(obs, env_ids)
        outputs = self.array(self._acting_network.forward(self.tensor(obs)))
        self.check_finite(outputs, obs, env_ids)
        distribution = self._acting_network.distribution
        if explore:
            return distribution.draw(outputs, self.rng)
        return {"action": distribution.mode(outputs)}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        return (network.distribution.mode_tensor(network.forward(obs)),)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        log_prob, entropy = self.evaluate(batch, self.recorded_actions(batch))
        loss = -log_prob.mean()
        norm = self._optimizer.minimize(loss)
        return {
            "total_loss": loss.item(),
            "entropy": entropy.detach().mean().item(),
            "grad_norm": norm,
        }

    def recorded_actions(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the actions of a batch as float32[n, numbers of an action].

        Raises:
            SchemaMismatchError: an action has another number of numbers.
        """
        rows = len(batch["action"])
        action: Tensor = batch["action"].reshape(rows, -1).float()
        size = math.prod(self._network.distribution.shape or ())
        self.check_shapes({"action": action}, action=(rows, size))
        return action

    def evaluate(self, batch: Mapping[str, Any], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions, and the entropies, float32[n] each."""
        outputs = self._network.forward(self.tensor(batch["obs"]))
        return self._network.distribution.evaluate(outputs, action)
