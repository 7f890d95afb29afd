"""IMPALA: an actor and a critic trained on unrolls of older policies, corrected by V-trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from dingsdk.config import Count, Finite, Part, Scheduled, Share, SmallCount, preset
from dingsdk.data import legal_actions, map_leaves, part_of
from dingsdk.policy import (
    ActionModelSection,
    ActorCritic,
    Adam,
    BasePolicy,
    CollectSection,
    Effective,
    LearnSection,
    OtherSection,
    PolicySection,
    Stateful,
    Weight,
    action_model,
    frozen,
    make_distribution,
)

Clip = Annotated[float, Meta(gt=0, le=1e6)]


class IMPALALearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of IMPALA.

    Attributes:
        update_per_collect: Iterations after each collect; times ``batch_size`` it is
            ``collect.n_sample``, as each unroll is used once.
        batch_size: Unrolls of one train iteration.
        learning_rate: Step size of Adam.
        rho_clip: Largest weight of a TD error, rho-bar: with a smaller one the values are of a
            policy nearer to the one that collected.
        c_clip: Largest weight of the TD errors of later steps, c-bar.
        trace_lambda: Factor of that weight.
        value_weight: Weight of the value loss in the total loss.
        entropy_weight: Weight of the entropy bonus in the total loss.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
    """

    update_per_collect: Count = 1
    batch_size: Count = 8
    learning_rate: Scheduled[Finite] = 6e-4
    rho_clip: Scheduled[Clip] = 1.0
    c_clip: Scheduled[Clip] = 1.0
    trace_lambda: Scheduled[Share] = 1.0
    value_weight: Scheduled[Weight] = 0.5
    entropy_weight: Scheduled[Weight] = 0.01
    grad_clip_norm: Scheduled[Effective | None] = 40.0


class IMPALACollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of IMPALA.

    Attributes:
        n_sample: Unrolls of one collect.
        unroll_len: Steps of an unroll.
    """

    n_sample: Count | None = 8
    unroll_len: SmallCount = 20


class IMPALAOtherSection(OtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of IMPALA.

    Attributes:
        replay_buffer: ``queue`` gives each unroll once, in order of arrival.
        commander: Without a limit of the age of samples: V-trace corrects for it.
    """

    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset("queue")
    commander: Annotated[dict[str, Any], Part("commanders")] = preset("solo", max_policy_lag=None)


class IMPALASection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of IMPALA.

    Attributes:
        on_policy: Only false: unrolls of older policies are corrected for.
        priority: Only false: each unroll is used once.
        nstep: Only 1: ``learn.trace_lambda`` sets how far ahead rewards count.
        random_collect_size: Only 0: the correction needs the probabilities of the actions.
    """

    type: str = "impala"
    on_policy: Literal[False] = False
    priority: Literal[False] = False
    nstep: Literal[1] = 1
    random_collect_size: Literal[0] = 0
    model: ActionModelSection = ActionModelSection()  # type: ignore[assignment]
    learn: IMPALALearnSection = IMPALALearnSection()
    collect: IMPALACollectSection = IMPALACollectSection()
    other: IMPALAOtherSection = IMPALAOtherSection()


class VTrace(NamedTuple):
    """The targets of one batch of unrolls, float32[n, time] each.

    Attributes:
        value: Targets of the state values, v_s.
        advantage: ``r_s + gamma v_(s+1) - V(x_s)``, without the factor rho.
        rho: The clipped importance weights.
    """

    value: Tensor
    advantage: Tensor
    rho: Tensor


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    done: Tensor,
    *,
    gamma: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    trace_lambda: float = 1.0,
) -> VTrace:
    """Return V-trace targets of unrolls, which may go on across the ends of episodes.

    Args:
        log_ratio: float32[n, time], the log-probability of each action under the trained policy,
            less that under the policy that chose it.
        reward: float32[n, time].
        value: float32[n, time], values of the states that the steps began in.
        next_value: float32[n, time], values of the states that they led to; 0 where the task ended.
        done: bool[n, time], True where the episode ended or was truncated.
        gamma: Discount of one step, in [0, 1].
        rho_clip: Largest importance weight of a TD error.
        c_clip: Largest weight of the TD errors of later steps.
        trace_lambda: Factor of that weight.

    Source: Espeholt et al. 2018, eq. 1 in the recursive form of remark 1; remark 2 for lambda.
    """
    ratio = log_ratio.exp()
    rho, trace = ratio.clamp(max=rho_clip), trace_lambda * ratio.clamp(max=c_clip)
    goes_on = ~done
    goes_on[:, -1] = False
    delta = rho * (reward + gamma * next_value - value)
    factor = gamma * trace * goes_on
    target = torch.empty_like(value)
    surplus = torch.zeros_like(value[:, 0])
    for step in range(value.shape[1] - 1, -1, -1):
        surplus = delta[:, step] + factor[:, step] * surplus
        target[:, step] = value[:, step] + surplus
    following = torch.where(goes_on, target.roll(-1, 1), next_value)
    return VTrace(target, reward + gamma * following - value, rho)


class IMPALAPolicy(BasePolicy):
    """IMPALA: an actor-critic with V-trace, type key ``impala``.

    It trains on unrolls, each once and in order of arrival, however old their policy is. An unroll
    goes on across the ends of episodes. If observations have an ``action_mask``, illegal actions
    have the probability 0.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), sections 4.1 and 4.2. Differences: losses are
    means over the steps instead of sums; Adam instead of RMSProp; the networks are those of
    ``ppo``, without a recurrent layer; at a truncation the value of the last observation is used.
    """

    Config: ClassVar[type[IMPALASection]] = IMPALASection
    section: IMPALASection
    piece = "unroll"
    is_data_parallel = True
    trains_on = frozenset({"rows"})
    monitored: ClassVar[tuple[str, ...]] = (
        *("total_loss", "policy_loss", "value_loss", "entropy", "rho", "grad_norm"),
    )
    model_from_spaces = staticmethod(partial(action_model, "impala"))

    def build(self) -> None:
        learn = self.section.learn
        self._network = self.make_network().to(self.device)
        if self.learns:
            self._optimizer = Adam(self._network, learn.learning_rate, learn.grad_clip_norm)
        self._acting_network = frozen(self._network)

    def make_network(self) -> ActorCritic:
        """Return a new network; a subclass may return its own subclass of ``ActorCritic``."""
        model = self.section.model
        return ActorCritic(
            model.observation, make_distribution(model), model.encoder_hidden_size_list
        )

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        return {**found, "optimizer": self._optimizer} if self.learns else found

    def act(
        self, obs: Any, env_ids: Sequence[int] | None = None, *, explore: bool, **setting: Any
    ) -> dict[str, NDArray[Any]]:
        legal_actions(obs, env_ids)
        outputs = self.array(self._acting_network.forward(self.tensor(obs))[0])
        self.check_finite(outputs, obs, env_ids)
        distribution = self._acting_network.distribution
        if explore:
            return distribution.draw(outputs, self.rng)
        return {"action": distribution.mode(outputs)}

    def greedy(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        return (network.distribution.mode_tensor(network.forward(obs)[0]),)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train once on a batch of unrolls.

        Args:
            batch: Columns ``[n, time, ...]``: ``obs``, ``action`` (``raw_action`` too if it is
                continuous), ``log_prob``, ``reward``, ``next_obs``, ``terminated`` and ``done``.

        Returns:
            The scalars that ``monitored`` names; ``rho`` is the mean importance weight.

        Raises:
            NonFiniteError: the loss or its gradient is NaN or infinite; the weights are kept.
        """
        learn, distribution = self.section.learn, self._network.distribution
        shape = tuple(batch["log_prob"].shape[:2])
        drawn, reward = batch[distribution.column], batch["reward"].float()
        self.check_shapes(batch, log_prob=shape, reward=shape, terminated=shape, done=shape)
        outputs, values = self._network.forward(self.tensor(_steps(batch["obs"])))
        log_prob, entropies = distribution.evaluate(outputs, drawn.flatten(0, 1))
        value, log_ratio = values.view(shape), log_prob.view(shape) - batch["log_prob"]
        next_value = self._next_values(batch, value.detach())
        targets = vtrace(
            *(log_ratio.detach(), reward, value.detach(), next_value, batch["done"].bool()),
            gamma=self.section.discount_factor,
            rho_clip=learn.rho_clip,
            c_clip=learn.c_clip,
            trace_lambda=learn.trace_lambda,
        )
        policy_loss = self.policy_loss(log_prob.view(shape), log_ratio, targets)
        value_loss, entropy = (value - targets.value).square().mean(), entropies.mean()
        loss = policy_loss + learn.value_weight * value_loss - learn.entropy_weight * entropy
        norm = self._optimizer.minimize(loss)
        means = torch.stack((loss, policy_loss, value_loss, entropy, targets.rho.mean()))
        return dict(zip(self.monitored, [*means.tolist(), norm], strict=True))

    def policy_loss(self, log_prob: Tensor, log_ratio: Tensor, targets: VTrace) -> Tensor:
        """Return the loss whose gradient is the policy gradient of section 4.2."""
        return -(targets.rho * targets.advantage * log_prob).mean()

    def _next_values(self, batch: Mapping[str, Any], value: Tensor) -> Tensor:
        """Return the value of the state after each step; 0 where the task ended."""
        ends = batch["done"].bool().clone()
        ends[:, -1] = True
        found = value.roll(-1, 1)
        last = part_of(batch["next_obs"], ends)
        found[ends] = self._acting_network.forward(self.tensor(last))[1]
        ended: Tensor = batch["terminated"].bool()
        return found * ~ended


def _steps(columns: Any) -> Any:
    """Return columns ``[n, time, ...]`` as ``[n * time, ...]``."""
    return map_leaves(lambda leaf: leaf.flatten(0, 1), columns)
