"""Rainbow: DQN with six extensions, among them noisy networks and distributions of returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from msgspec import Meta
from torch import Tensor, nn

from dingsdk.config import LARGEST_INT, Count, Finite, Part, Scheduled, Share, SmallCount, preset
from dingsdk.policy import (
    DQNModelSection,
    DQNOtherSection,
    DQNPolicy,
    DQNSection,
    EpsilonSchedule,
    EpsilonType,
    LearnSection,
    TDLoss,
    discrete_model,
    make_encoder,
    without_illegal,
)

Bound = Annotated[float, Meta(ge=-LARGEST_INT, le=LARGEST_INT)]


class RainbowModelSection(DQNModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of Rainbow.

    Attributes:
        encoder_hidden_size_list: Widths of the hidden layers. The last of them is noisy, and each
            stream of a dueling network has its own.
        atom_count: Number of returns, from ``v_min`` to ``v_max``, that get a probability.
        v_min: Smallest return.
        v_max: Largest return.
        sigma: Initial deviation of the noise, divided by the root of the number of inputs.
    """

    dueling: bool = True
    atom_count: Annotated[int, Meta(ge=2, le=1000)] = 51
    v_min: Bound = -10.0
    v_max: Bound = 10.0
    sigma: Finite = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min is {self.v_min}, not below v_max {self.v_max}")
        if not self.encoder_hidden_size_list:
            raise ValueError("encoder_hidden_size_list is empty; the last hidden layer is noisy")


class RainbowLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of Rainbow.

    Attributes:
        update_per_collect: Iterations after each collect; 16 for 64 samples is one for every four
            env steps, as in the paper.
        learning_rate: Step size of Adam.
        double: Whether the trained network chooses the best next action.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
        target_update_freq: Iterations between two copies to the target network.
        target_theta: Share by which the target network moves towards the trained weights in each
            iteration, instead of copies; None for copies.
    """

    update_per_collect: Count = 16
    learning_rate: Scheduled[Finite] = 1e-3
    double: bool = True
    grad_clip_norm: Scheduled[Finite | None] = 10.0
    target_update_freq: Count = 100
    target_theta: Scheduled[Annotated[float, Meta(ge=1e-6, le=1)] | None] = None


class RainbowEpsilon(EpsilonSchedule, frozen=True, kw_only=True):
    """Section ``policy.other.eps`` of Rainbow: 0, as its noisy networks explore.

    Attributes:
        type: As of DQN; ``constant`` by default.
        start: Epsilon before the first step.
    """

    type: EpsilonType = "constant"
    start: Share = 0.0


class RainbowOtherSection(DQNOtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of Rainbow.

    Attributes:
        eps: Probability of a random action, as a schedule over env steps.
        replay_buffer: The replay buffer by ``type``, with its options; one that draws samples by
            priority, unless ``priority`` is false.
    """

    eps: RainbowEpsilon = RainbowEpsilon()
    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset("advanced", alpha=0.5)


class RainbowSection(DQNSection, frozen=True, kw_only=True):
    """Section ``policy`` of Rainbow."""

    type: str = "rainbow"
    priority: bool = True
    nstep: SmallCount = 3
    model: RainbowModelSection = RainbowModelSection()
    learn: RainbowLearnSection = RainbowLearnSection()  # type: ignore[assignment]
    other: RainbowOtherSection = RainbowOtherSection()


class NoisyLinear(nn.Module):
    """A linear layer whose weights have a mean, and a deviation that multiplies given noise.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs.
        sigma: Initial deviation, divided by the root of ``inputs``.

    Attributes:
        noise_size: Length of the noise.

    Source: Fortunato et al. 2018, eq. 9; factorised noise of eq. 10 and 11; section 3.2.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.sizes = [inputs, outputs]
        self.noise_size = inputs + outputs
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, hidden: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return float32[n, outputs]; ``noise`` is standard normal, None: the mean weights."""
        if noise is None:
            return F.linear(hidden, self.weight, self.bias)
        before, after = torch.split(noise.sign() * noise.abs().sqrt(), self.sizes)
        weight = self.weight + self.weight_sigma * torch.outer(after, before)
        return F.linear(hidden, weight, self.bias + self.bias_sigma * after)


class RainbowNetwork(nn.Module):
    """An encoder, and noisy layers from its features to a distribution of each action's return.

    Args:
        obs_shape: Shape of an observation, as ``make_encoder`` takes it.
        model: The section; its ``atom_count`` returns are the ``support``.
        action_count: Number of actions.

    Attributes:
        noise_size: Length of the noise of all layers.

    Source: Hessel et al. 2018, section "The Integrated Agent".
    """

    support: Tensor

    def __init__(self, obs_shape: Any, action_count: int, model: RainbowModelSection) -> None:
        super().__init__()
        *shared, width = model.encoder_hidden_size_list
        self.encoder = make_encoder(obs_shape, shared)
        layers = []
        for rows in [action_count, 1] if model.dueling else [action_count]:
            layers.append(NoisyLinear(self.encoder.width, width, model.sigma))
            layers.append(NoisyLinear(width, rows * model.atom_count, model.sigma))
        self.streams = nn.ModuleList(layers)
        self.noise_sizes = [layer.noise_size for layer in layers]
        self.noise_size = sum(self.noise_sizes)
        support = torch.linspace(model.v_min, model.v_max, model.atom_count)
        self.register_buffer("support", support, persistent=False)

    def log_probs(self, obs: Any, noise: Tensor | None = None) -> Tensor:
        """Return the log-probabilities of all returns, float32[n, actions, atoms]."""
        features = self.encoder.forward(obs)
        parts: Sequence[Tensor | None] = [None] * len(self.streams)
        if noise is not None:
            parts = torch.split(noise, self.noise_sizes)
        made: list[Tensor] = []
        for index in range(0, len(self.streams), 2):
            hidden = torch.relu(self.streams[index](features, parts[index]))
            out = self.streams[index + 1](hidden, parts[index + 1])
            made.append(out.view(len(out), -1, len(self.support)))
        logits = made[0]
        if len(made) == 2:
            logits = made[1] + logits - logits.mean(1, keepdim=True)
        return logits.log_softmax(2)

    def forward(self, obs: Any, noise: Tensor | None = None) -> Tensor:
        """Return the expected returns float32[n, actions]."""
        return without_illegal(self.log_probs(obs, noise).exp() @ self.support, obs)


def project(probs: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Return the distribution of ``reward + discount * return`` on the support.

    Args:
        probs: float32[n, atoms], the probabilities of the returns of the support.
        reward: float32[n].
        discount: float32[n].
        support: float32[atoms], equally spaced, ascending.

    Source: Bellemare et al. 2017, eq. 7.
    """
    moved = torch.addcmul(reward.unsqueeze(1), discount.unsqueeze(1), support)
    moved = moved.clamp(support[0], support[-1])
    distance = (moved.unsqueeze(1) - support.unsqueeze(1)).abs() / (support[1] - support[0])
    shares = (1 - distance).clamp(min=0)  # [n, to, from]
    return torch.bmm(shares, probs.unsqueeze(2)).squeeze(2)


class RainbowPolicy(DQNPolicy):
    """Rainbow for discrete actions, type key ``rainbow``.

    DQN with double estimates, prioritized replay, a dueling network, n-step returns, distributions
    of returns and noisy networks. It acts with new noise at each step, and without it in
    evaluations. ``q_value`` and ``target_q_value`` are means of the distributions.

    Source: Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning"
    (arXiv:1710.02298). Differences: only the last hidden layer and the outputs are noisy; Adam has
    its usual epsilon.
    """

    Config: ClassVar[type[RainbowSection]] = RainbowSection
    section: RainbowSection
    model_from_spaces = staticmethod(partial(discrete_model, "rainbow"))

    def make_network(self) -> nn.Module:
        """Return a new network, called as ``RainbowNetwork``; subclasses may return another."""
        model = self.section.model
        return RainbowNetwork(model.observation, model.action_count, model)

    def action_values(self, network: Any, obs: Any, *, explore: bool) -> Tensor:
        values: Tensor = network.forward(obs, self._noise(network) if explore else None)
        return values

    def td_loss(self, batch: Mapping[str, Any], network: Any, acting: Any, target: Any) -> TDLoss:
        obs, next_obs = self.tensor(batch["obs"]), self.tensor(batch["next_obs"])
        rows, support = torch.arange(len(batch["action"]), device=self.device), network.support
        after = target.log_probs(next_obs, self._noise(network)).exp()
        if self.section.learn.double:
            values = acting.forward(next_obs, self._noise(network))
        else:
            values = without_illegal(after @ support, next_obs)
        reward, discount = batch["reward"].float(), batch["discount"].float()
        wanted = project(after[rows, values.argmax(1)], reward, discount, support)
        action = batch["action"].long() - self.section.model.first_actions[0]
        found = network.log_probs(obs, self._noise(network))[rows, action]
        losses = F.kl_div(found, wanted, reduction="none").sum(1)
        weights = batch.get("IS")
        loss = (losses if weights is None else losses * weights.to(losses)).mean()
        # Rounding can make the divergence of equal distributions negative.
        priority = losses.detach().clamp(min=0)
        return TDLoss(loss, found.exp() @ support, wanted @ support, priority)

    def _noise(self, network: RainbowNetwork) -> Tensor:
        noise = self.rng.standard_normal(network.noise_size, np.float32)
        return torch.from_numpy(noise).to(self.device)
