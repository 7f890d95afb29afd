"""QR-DQN: deep Q-learning that estimates quantiles of the return instead of its mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor, nn

from dingsdk.config import SmallCount
from dingsdk.policy import (
    DQNLearnSection,
    DQNModelSection,
    DQNPolicy,
    DQNSection,
    TDLoss,
    discrete_model,
    make_encoder,
    without_illegal,
)


class QRDQNModelSection(DQNModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of QR-DQN.

    Attributes:
        quantile_count: Number of quantiles of each action's return.
    """

    quantile_count: SmallCount = 200


class QRDQNLearnSection(DQNLearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of QR-DQN.

    Attributes:
        loss: The quantile Huber loss.
        huber_delta: TD error at which the loss turns linear; kappa in the paper.
        double: Whether the trained network chooses the best next action; in the paper the target
            network does.
    """

    loss: Literal["huber"] = "huber"
    double: bool = False


class QRDQNSection(DQNSection, frozen=True, kw_only=True):
    """Section ``policy`` of QR-DQN."""

    type: str = "qrdqn"
    model: QRDQNModelSection = QRDQNModelSection()
    learn: QRDQNLearnSection = QRDQNLearnSection()


class QuantileNetwork(nn.Module):
    """An encoder, and linear heads from its features to quantiles of each action's return.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        action_count: Number of actions.
        quantile_count: Number of quantiles.
        hidden_sizes: Width of each hidden layer of the encoder.
        dueling: Whether the quantiles of the state value have a head of their own.
    """

    def __init__(
        self,
        obs_shape: Any,
        action_count: int,
        quantile_count: int,
        hidden_sizes: Sequence[int],
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.shape = action_count, quantile_count
        self.encoder = make_encoder(obs_shape, hidden_sizes)
        self.head = nn.Linear(self.encoder.width, action_count * quantile_count)
        self.value = nn.Linear(self.encoder.width, quantile_count) if dueling else None

    def quantiles(self, obs: Any) -> Tensor:
        """Return the quantiles float32[n, actions, quantiles] of observations ``[n, ...]``."""
        hidden = self.encoder.forward(obs)
        found: Tensor = self.head(hidden).unflatten(1, self.shape)
        if self.value is not None:
            found = self.value(hidden).unsqueeze(1) + found - found.mean(1, keepdim=True)
        return found

    def forward(self, obs: Any) -> Tensor:
        """Return the means of the quantiles, float32[n, actions]."""
        return without_illegal(self.quantiles(obs).mean(2), obs)


def quantile_huber_losses(quantiles: Tensor, targets: Tensor, kappa: float) -> Tensor:
    """Return the quantile Huber loss of each row, float32[n].

    Args:
        quantiles: float32[n, N], the estimates of the quantiles at (i - 1/2) / N for i = 1..N.
        targets: float32[n, M], equally probable returns.
        kappa: Error at which the loss turns linear.

    Source: Dabney et al. 2018, eq. 9 and 10, summed and averaged as in algorithm 1. The midpoints
    are those of lemma 2.
    """
    count = quantiles.shape[1]
    midpoints = (torch.arange(count, device=quantiles.device) + 0.5) / count
    # [n, N, M]: each estimate with each target
    rows = quantiles.unsqueeze(2).expand(-1, -1, targets.shape[1])
    columns = targets.unsqueeze(1).expand(-1, count, -1)
    huber = F.huber_loss(rows, columns, reduction="none", delta=kappa)
    is_below, share = columns < rows.detach(), midpoints.unsqueeze(1)
    weights = torch.where(is_below, 1 - share, share)
    return (weights * huber).mean(2).sum(1)


class QRDQNPolicy(DQNPolicy):
    """QR-DQN for discrete actions, type key ``qrdqn``.

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression"
    (arXiv:1710.10044), algorithm 1. Difference: Adam has its usual epsilon.
    """

    Config: ClassVar[type[QRDQNSection]] = QRDQNSection
    section: QRDQNSection
    model_from_spaces = staticmethod(partial(discrete_model, "qrdqn"))

    def make_network(self) -> nn.Module:
        """Return a new network, called as ``QuantileNetwork``; subclasses may return another."""
        model = self.section.model
        return QuantileNetwork(
            model.observation,
            model.action_count,
            model.quantile_count,
            model.encoder_hidden_size_list,
            dueling=model.dueling,
        )

    def td_loss(self, batch: Mapping[str, Any], network: Any, acting: Any, target: Any) -> TDLoss:
        obs, next_obs = self.tensor(batch["obs"]), self.tensor(batch["next_obs"])
        rows = torch.arange(len(batch["action"]), device=self.device)
        learn, after = self.section.learn, target.quantiles(next_obs)
        if learn.double:
            values = acting.forward(next_obs)
        else:
            values = without_illegal(after.mean(2), next_obs)
        reward, discount = (batch[key].float().unsqueeze(1) for key in ("reward", "discount"))
        targets = torch.addcmul(reward, discount, after[rows, values.argmax(1)])
        action = batch["action"].long() - self.section.model.first_actions[0]
        quantiles = network.quantiles(obs)[rows, action]
        losses = quantile_huber_losses(quantiles, targets, learn.huber_delta)
        weights = batch.get("IS")
        loss = (losses if weights is None else losses * weights.to(losses)).mean()
        return TDLoss(loss, quantiles.mean(1), targets.mean(1))
