"""Deep Q-learning: double estimate, n-step returns, target network, epsilon-greedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from dingsdk.config import Count, Positive, read_section
from dingsdk.data import SampleBatch
from dingsdk.errors import NonFiniteError, SchemaMismatchError
from dingsdk.policy.adam import FlatAdam
from dingsdk.policy.base import BasePolicy, Stateful
from dingsdk.policy.epsilon import EpsilonSchedule
from dingsdk.policy.networks import QNetwork
from dingsdk.policy.returns import nstep_returns
from dingsdk.policy.sections import (
    CollectSection,
    FlatModelSection,
    LearnSection,
    OtherSection,
    PolicySection,
    flat_model,
)

COLUMNS = ("obs", "action", "reward", "next_obs", "discount")
# Below this a uniform number of 53 bits has no room left to choose the action as well.
_SMALLEST_EPS = 1e-9


class DQNModelSection(FlatModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of DQN.

    Attributes:
        dueling: Whether state value and advantages have heads of their own.
    """

    dueling: bool = False


class DQNLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of DQN.

    Attributes:
        learning_rate: Step size of Adam.
        loss: Of the TD error.
        huber_delta: TD error at which the Huber loss turns linear.
        double: Whether the trained network chooses the action whose target value counts.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
        target_update_freq: Iterations between two copies to the target network.
        target_theta: Share of the trained weights that the target takes over in each iteration,
            in place of copies; None for copies.
    """

    learning_rate: Positive = 1e-3
    loss: Literal["huber", "mse"] = "huber"
    huber_delta: Positive = 1.0
    double: bool = True
    grad_clip_norm: Positive | None = 10.0
    target_update_freq: Count = 100
    target_theta: Annotated[float, Meta(gt=0, le=1)] | None = None


class DQNCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of DQN."""

    n_sample: Count | None = 64


class DQNOtherSection(OtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of DQN.

    Attributes:
        eps: Chance of a random action, by env steps.
    """

    eps: EpsilonSchedule = EpsilonSchedule()


class DQNSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of DQN."""

    type: str = "dqn"
    model: DQNModelSection = DQNModelSection()  # type: ignore[assignment]
    learn: DQNLearnSection = DQNLearnSection()
    collect: DQNCollectSection = DQNCollectSection()
    other: DQNOtherSection = DQNOtherSection()


class DQNPolicy(BasePolicy):
    """DQN for flat observations and discrete actions, type key ``dqn``.

    Source: Mnih et al. 2015; double estimate from van Hasselt et al. 2016, eq. 4.
    """

    Config: ClassVar[type[DQNSection]] = DQNSection
    section: DQNSection
    monitored: ClassVar[tuple[str, ...]] = (
        "cur_lr",
        "total_loss",
        "q_value",
        "target_q_value",
        "grad_norm",
    )
    model_from_spaces = staticmethod(partial(flat_model, "dqn"))

    def build(self) -> None:
        model = self.section.model
        self._network = network = QNetwork(
            model.size("obs_shape"),
            model.size("action_shape"),
            model.encoder_hidden_size_list,
            dueling=model.dueling,
            seed=torch.initial_seed(),
            device=self.device,
        )
        if self.learns:
            self._target = network.clone()
            self._adam = FlatAdam(network.flat, self.section.learn.learning_rate)

    def state(self) -> Mapping[str, Stateful]:
        found: dict[str, Stateful] = {"model": self._network}
        if self.learns:
            found.update(target_model=self._target, optimizer=self._adam)
        return found

    def on_loaded(self, missing: Set[str]) -> None:
        if "target_model" in missing:
            self._target.flat.copy_(self._network.flat)
        if "optimizer" in missing:
            self._adam.reset()

    # Acting -------------------------------------------------------------------------------
    def setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        return {"eps": self.section.other.eps(info.get("envstep", 0))}

    def act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        *,
        explore: bool,
        eps: float | None = None,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        """Return the best action of each row, or with probability ``eps`` a random one.

        Args:
            obs: float[n, obs_size].
            env_ids: The env of each row, for messages.
            eps: In [0, 1]; None for the start of the schedule. Not used in evaluations.
            explore: Whether to use ``eps``.

        Raises:
            NonFiniteError: an action value is NaN or infinite.
            SchemaMismatchError: the observations do not fit the network.
        """
        actions = self._values(obs, env_ids).argmax(1)
        if not explore:
            return {"action": actions}
        if eps is None:
            eps = self.section.other.eps(0)
        if eps > _SMALLEST_EPS:
            draws = self.rng.random(len(actions))
            if draws.min() < eps:
                # Below eps the draw is uniform in [0, eps), so it chooses the action too.
                count = self._network.action_count
                drawn = np.minimum((draws * (count / eps)).astype(np.int64), count - 1)
                actions = np.where(draws < eps, drawn, actions)
        return {"action": actions}

    def _values(
        self, obs: NDArray[Any], env_ids: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        try:
            values: NDArray[np.float32] = self._network.values(self.tensor(obs)).cpu().numpy()
        except RuntimeError as error:
            size = self._network.obs_size
            raise SchemaMismatchError(
                f"the observations have shape {obs.shape}, dqn's network takes [n, {size}]; does "
                "policy.model.obs_shape match the env?",
                key="obs",
                expected=("n", size),
                found=obs.shape,
            ) from error
        # The maximum is NaN where any value is, and costs 1.3 us; isfinite().all() 3.
        if not -np.inf < np.maximum.reduce(values, axis=None) < np.inf:
            raise _non_finite_values(obs, values, env_ids)
        return values

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        """Return one n-step sample per row of whole trajectory pieces.

        Returns:
            The columns with ``reward`` the n-step sum, ``next_obs`` and ``done`` of the last step
            spanned, and ``discount`` instead of ``terminated``. Columns that need no change are
            not copied; for ``nstep`` 1 these are all but ``discount``.
        """
        made = dict(columns)
        reward, discount, last = nstep_returns(
            made["reward"],
            made.pop("terminated"),
            ends,
            gamma=self.section.discount_factor,
            nstep=self.section.nstep,
        )
        made["reward"], made["discount"] = reward, discount
        if last is not None:
            made["next_obs"] = made["next_obs"].take(last, axis=0)
            made["done"] = made["done"].take(last)
        return SampleBatch(made)

    # Learning -----------------------------------------------------------------------------
    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train once on a batch.

        Args:
            batch: Samples with ``obs`` [n, obs_size], ``action`` [n], ``reward`` [n] (n-step),
                ``next_obs`` [n, obs_size], ``discount`` [n] (0: no bootstrap) and perhaps the
                importance weights ``IS`` [n].

        Returns:
            Scalars ``cur_lr``, ``total_loss``, ``q_value``, ``target_q_value``, ``grad_norm``;
            with ``policy.priority`` also ``priority``, a list of absolute TD errors.

        Raises:
            NonFiniteError: the loss or its gradient is NaN or infinite; the weights are kept.
            SchemaMismatchError: a column is missing or does not fit the network.
        """
        obs, action, reward, next_obs, discount = self._inputs(batch)
        learning, network = self.section.learn, self._network
        try:
            next_values = self._target.values(next_obs)
            greedy = network.values(next_obs) if learning.double else next_values
            bootstrap = next_values.gather(1, greedy.argmax(1, keepdim=True)).squeeze(1)
            target = torch.addcmul(reward, discount, bootstrap)
            value = network.values_with_grad(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        except (RuntimeError, IndexError) as error:
            raise self._misfit(batch, error) from error
        loss = self._loss(value, target, batch.get("IS"))
        gradients = torch.autograd.grad(loss, network.trainable)
        gradient = torch.cat([part.reshape(-1) for part in gradients])
        norm = torch.linalg.vector_norm(gradient)
        value = value.detach()
        # One read for all that is logged: on an accelerator every read waits for the device.
        loss_, value_mean, target_mean, norm_ = torch.stack(
            (loss.detach(), value.mean(), target.mean(), norm)
        ).tolist()
        if not (math.isfinite(loss_) and math.isfinite(norm_)):
            raise self._non_finite(batch, loss_, norm_)
        self._apply(gradient, norm_)
        log_vars: dict[str, Any] = {
            "cur_lr": self._adam.learning_rate,
            "total_loss": loss_,
            "q_value": value_mean,
            "target_q_value": target_mean,
            "grad_norm": norm_,
        }
        if self.section.priority:
            log_vars["priority"] = (value - target).abs_().tolist()
        return log_vars

    def _get_attribute(self, key: str) -> Any:
        if key == "learning_rate" and self.learns:
            return self._adam.learning_rate
        return super()._get_attribute(key)

    def _set_attribute(self, key: str, value: Any) -> None:
        if key == "learning_rate" and self.learns:
            learn = read_section(DQNLearnSection, {key: value}, "policy.learn")
            self._adam.learning_rate = learn.learning_rate
            return
        super()._set_attribute(key, value)

    def _inputs(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        try:
            columns = [batch[key] for key in COLUMNS]
        except KeyError as error:
            raise SchemaMismatchError(
                f"dqn trains on the columns {', '.join(COLUMNS)}; the batch has "
                f"{', '.join(sorted(batch))}; make samples with get_train_sample or make_samples",
                key=error.args[0],
                expected=list(COLUMNS),
                found=sorted(batch),
            ) from None
        obs, action, reward, next_obs, discount = columns
        return [obs.float(), action.long(), reward.float(), next_obs.float(), discount.float()]

    def _loss(self, value: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        reduction = "mean" if weights is None else "none"
        if self.section.learn.loss == "mse":
            loss = F.mse_loss(value, target, reduction=reduction)
        else:
            delta = self.section.learn.huber_delta
            loss = F.huber_loss(value, target, reduction=reduction, delta=delta)
        return loss if weights is None else (loss * weights.to(loss)).mean()

    def _apply(self, gradient: Tensor, norm: float) -> None:
        learning, flat = self.section.learn, self._network.flat
        limit = learning.grad_clip_norm
        if limit is not None and norm > limit:
            gradient.mul_(limit / norm)
        self._adam.step(gradient)
        if learning.target_theta is not None:
            self._target.flat.lerp_(flat, learning.target_theta)
        elif self._adam.updates % learning.target_update_freq == 0:
            self._target.flat.copy_(flat)

    def _non_finite(self, batch: Mapping[str, Tensor], loss: float, norm: float) -> NonFiniteError:
        bad = [key for key in (*COLUMNS, "IS") if key in batch and not _all_finite(batch[key])]
        if bad:
            cause = f"the batch's column {bad[0]!r} holds NaN or infinity: look at the env"
        elif not _all_finite(self._network.flat):
            cause = "the weights hold NaN or infinity: load an earlier checkpoint"
        else:
            cause = "the action values diverge: lower policy.learn.learning_rate"
        return NonFiniteError(
            f"dqn update {self._adam.updates}: loss {loss:g}, gradient norm {norm:g}; {cause} "
            "(the update was not applied)",
            key=bad[0] if bad else "total_loss",
            update=self._adam.updates,
        )

    def _misfit(self, batch: Mapping[str, Tensor], cause: Exception) -> SchemaMismatchError:
        network = self._network
        found = {key: tuple(batch[key].shape) for key in COLUMNS}
        expected = (
            f"obs and next_obs [n, {network.obs_size}], the others [n], "
            f"action in 0..{network.action_count - 1}"
        )
        return SchemaMismatchError(
            f"the batch does not fit dqn's network: expected {expected}; found the shapes {found} "
            f"({str(cause).splitlines()[0]}); does policy.model match the env?",
            key="obs",
            expected=expected,
            found=found,
        )


def _all_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def _non_finite_values(
    obs: NDArray[Any], values: NDArray[Any], env_ids: Sequence[int] | None
) -> NonFiniteError:
    is_finite = np.isfinite(values).all(axis=1).tolist()
    ids = range(len(obs)) if env_ids is None else env_ids
    envs = [int(env_id) for env_id, finite in zip(ids, is_finite, strict=True) if not finite]
    if np.isfinite(obs).all():
        cause = (
            "the observations are finite, so the weights diverged: lower "
            "policy.learn.learning_rate, or load an earlier checkpoint"
        )
    else:
        cause = "the observations hold NaN or infinity: look at the env"
    return NonFiniteError(
        f"dqn's action values for env {', '.join(map(str, envs))} are not finite; {cause}",
        key="action",
        env_ids=envs,
    )
