"""The training step of DQN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor

from dingsdk.data import SampleBatch, collate
from dingsdk.errors import NonFiniteError, SchemaMismatchError
from dingsdk.policy.adam import FlatAdam
from dingsdk.policy.dqn_config import DQNLearnSection
from dingsdk.policy.networks import QNetwork
from dingsdk.policy.weights import as_array, flat_vector, required

COLUMNS = ("obs", "action", "reward", "next_obs", "discount")


class DQNLearner:
    """Q-learning with a target network on n-step samples; not thread safe.

    Source: Mnih et al. 2015; double estimate from van Hasselt et al. 2016, eq. 4.

    Args:
        network: Trained in place.
        learning: How.
        returns_priority: Whether a step returns a priority for each sample.
    """

    def __init__(
        self, network: QNetwork, learning: DQNLearnSection, *, returns_priority: bool = False
    ) -> None:
        self.network = network
        self.target = network.clone()
        self.learning = learning
        self._returns_priority = returns_priority
        self.adam = FlatAdam(network.flat, learning.learning_rate)

    def step(self, data: SampleBatch | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Train once on a batch.

        Args:
            data: Samples with ``obs`` [n, obs_size], ``action`` [n], ``reward`` [n] (n-step),
                ``next_obs`` [n, obs_size], ``discount`` [n] (0: no bootstrap) and perhaps the
                importance weights ``IS`` [n].

        Returns:
            Scalars ``cur_lr``, ``total_loss``, ``q_value``, ``target_q_value``, ``grad_norm``;
            with ``policy.priority`` also ``priority``, a list of absolute TD errors.

        Raises:
            NonFiniteError: the loss or its gradient is NaN or infinite; the weights are kept.
            SchemaMismatchError: a column is missing or does not fit the network.
        """
        batch = collate(data)
        obs, action, reward, next_obs, discount = self._inputs(batch)
        learning, network = self.learning, self.network
        try:
            next_values = self.target.values(next_obs)
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
            "cur_lr": self.adam.learning_rate,
            "total_loss": loss_,
            "q_value": value_mean,
            "target_q_value": target_mean,
            "grad_norm": norm_,
        }
        if self._returns_priority:
            log_vars["priority"] = (value - target).abs_().tolist()
        return log_vars

    def state_dict(self) -> dict[str, Any]:
        """Return the training state: tensors (not copied) and plain numbers."""
        return {
            "model": self.network.named(),
            "target_model": self.target.named(),
            "optimizer": {
                "step": self.adam.updates,
                "exp_avg": self.adam.first,
                "exp_avg_sq": self.adam.second,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; without ``target_model`` or ``optimizer`` these start afresh.

        Raises:
            SchemaMismatchError: it does not fit; nothing is changed.
        """
        model = flat_vector(self.network, required(state, "model", "policy state"), "model")
        target = model
        if "target_model" in state:
            names = required(state, "target_model", "policy state")
            target = flat_vector(self.target, names, "target_model")
        updates, first, second = 0, torch.zeros_like(model), torch.zeros_like(model)
        if "optimizer" in state:
            saved = required(state, "optimizer", "policy state")
            updates = int(saved.get("step", 0))
            first, second = (_moment(saved, key, model) for key in ("exp_avg", "exp_avg_sq"))
        self.network.flat.copy_(model)
        self.target.flat.copy_(target)
        self.adam.updates = updates
        self.adam.first.copy_(first)
        self.adam.second.copy_(second)

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
        device = self.network.flat.device
        if device.type != "cpu":
            columns = [column.to(device, non_blocking=True) for column in columns]
        obs, action, reward, next_obs, discount = columns
        return [obs.float(), action.long(), reward.float(), next_obs.float(), discount.float()]

    def _loss(self, value: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        reduction = "mean" if weights is None else "none"
        if self.learning.loss == "mse":
            loss = F.mse_loss(value, target, reduction=reduction)
        else:
            delta = self.learning.huber_delta
            loss = F.huber_loss(value, target, reduction=reduction, delta=delta)
        return loss if weights is None else (loss * weights.to(loss)).mean()

    def _apply(self, gradient: Tensor, norm: float) -> None:
        learning, flat = self.learning, self.network.flat
        limit = learning.grad_clip_norm
        if limit is not None and norm > limit:
            gradient.mul_(limit / norm)
        self.adam.step(gradient)
        if learning.target_theta is not None:
            self.target.flat.lerp_(flat, learning.target_theta)
        elif self.adam.updates % learning.target_update_freq == 0:
            self.target.flat.copy_(flat)

    def _non_finite(self, batch: Mapping[str, Tensor], loss: float, norm: float) -> NonFiniteError:
        bad = [key for key in (*COLUMNS, "IS") if key in batch and not _all_finite(batch[key])]
        if bad:
            cause = f"the batch's column {bad[0]!r} holds NaN or infinity: look at the env"
        elif not _all_finite(self.network.flat):
            cause = "the weights hold NaN or infinity: load an earlier checkpoint"
        else:
            cause = "the action values diverge: lower policy.learn.learning_rate"
        return NonFiniteError(
            f"dqn update {self.adam.updates}: loss {loss:g}, gradient norm {norm:g}; {cause} "
            "(the update was not applied)",
            key=bad[0] if bad else "total_loss",
            update=self.adam.updates,
        )

    def _misfit(self, batch: Mapping[str, Tensor], cause: Exception) -> SchemaMismatchError:
        network = self.network
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


def _moment(saved: Mapping[str, Any], key: str, like: Tensor) -> Tensor:
    value = saved.get(key)
    # A copy: torch warns about arrays that it may not write to.
    moment = None if value is None else torch.tensor(as_array(value))
    if moment is None or moment.shape != like.shape:
        found = None if moment is None else tuple(moment.shape)
        raise SchemaMismatchError(
            f"optimizer: {key} has shape {found}, this network needs {tuple(like.shape)}; is "
            "policy.model the same as where it was saved?",
            key=key,
            expected=tuple(like.shape),
            found=found,
        )
    return moment
