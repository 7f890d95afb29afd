"""R2D2: recurrent double DQN on sequences of experience."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.config import Count, Part, Scheduled, Share, SmallCount, Whole, preset
from dingsdk.data import SampleBatch
from dingsdk.data.pytree import map_leaves, part_of
from dingsdk.policy.dqn import (
    DQNLearnSection,
    DQNModelSection,
    DQNOtherSection,
    DQNPolicy,
    DQNSection,
)
from dingsdk.policy.networks import RecurrentQNetwork
from dingsdk.policy.spaces import discrete_model

_BURN_IN, _LENGTH = 10, 20


class R2D2ModelSection(DQNModelSection, frozen=True, kw_only=True):
    """Section ``policy.model`` of R2D2.

    Attributes:
        lstm_size: Units of the LSTM that follows the hidden layers.
    """

    dueling: bool = True
    lstm_size: Count = 64


class R2D2LearnSection(DQNLearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of R2D2.

    Attributes:
        update_per_collect: Iterations after each collect.
        batch_size: Sequences of one train iteration.
        sequence_length: Steps of a sequence that are trained on.
        burn_in: Steps before each sequence that bring the recurrent state up to date; they are
            not trained on.
        value_rescale: Whether action values are learned on a square-root scale.
        priority_max_share: Weight of the largest TD error in the priority of a sequence; the mean
            TD error has the remaining weight.
    """

    update_per_collect: Count = 2
    batch_size: Count = 32
    sequence_length: SmallCount = _LENGTH
    burn_in: Whole = _BURN_IN
    value_rescale: bool = True
    priority_max_share: Scheduled[Share] = 0.9


class R2D2OtherSection(DQNOtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of R2D2.

    Attributes:
        replay_buffer: ``sequence`` stores steps and draws sequences uniformly; its
            ``sequence_length`` and ``sampler.burn_in`` must equal those of ``policy.learn``. Any
            other type stores sequences, which overlap by half; ``advanced`` draws them by
            priority. ``collect.n_sample`` counts stored items: steps or sequences.
    """

    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset(
        "sequence",
        sequence_length=_LENGTH,
        sampler={"type": "sequence", "burn_in": _BURN_IN, "pad": True},
    )


class R2D2Section(DQNSection, frozen=True, kw_only=True):
    """Section ``policy`` of R2D2."""

    type: str = "r2d2"
    traj_len_inf: bool = True
    model: R2D2ModelSection = R2D2ModelSection()
    learn: R2D2LearnSection = R2D2LearnSection()
    other: R2D2OtherSection = R2D2OtherSection()

    @property
    def stores_steps(self) -> bool:
        """Whether the replay buffer cuts sequences itself."""
        return bool(self.other.replay_buffer.get("type") == "sequence")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stores_steps:
            return
        buffer = self.other.replay_buffer
        lengths = {
            "sequence_length": buffer.get("sequence_length"),
            # The burn_in of the preset belongs to the preset's sampler.
            "sampler.burn_in": (buffer.get("sampler") or {}).get("burn_in", 0),
        }
        for name, found in lengths.items():
            key = name.rpartition(".")[2]
            wanted = getattr(self.learn, key)
            if found != wanted:
                raise ValueError(
                    f"other.replay_buffer.{name} is {found}, but learn.{key} is {wanted}; "
                    "make them equal"
                )


class R2D2Policy(DQNPolicy):
    """Recurrent, dueling double DQN, type key ``r2d2``.

    Each step is stored with the recurrent state before it. Training starts from the state that is
    stored at the start of a sequence, and runs the burn-in steps first, without gradients.

    Source: Kapturowski et al. 2019, sections 2.3 and 3. Differences: the previous action and
    reward are not inputs; a sequence may start at any step, and is shorter at the ends of an
    episode.
    """

    Config: ClassVar[type[R2D2Section]] = R2D2Section
    contract_config: ClassVar[Mapping[str, Any]] = {
        "learn": {"sequence_length": 4, "burn_in": 2},
        "other": {"replay_buffer": {"type": "advanced"}},
        "priority": True,
    }
    section: R2D2Section
    trains_on = frozenset({"rows", "sequences"})
    model_from_spaces = staticmethod(partial(discrete_model, "r2d2"))

    _network: RecurrentQNetwork

    def build(self) -> None:
        super().build()
        self.state_size = self._network.state_size

    def make_network(self) -> RecurrentQNetwork:
        """Return a new network, called as ``RecurrentQNetwork``; subclasses may return another."""
        model = self.section.model
        return RecurrentQNetwork(
            model.observation,
            model.action_count,
            model.encoder_hidden_size_list,
            model.lstm_size,
            dueling=model.dueling,
        )

    def _step(self, network: Any, obs: Any, *state: Tensor) -> tuple[Tensor, ...]:
        values, after = network.forward(map_leaves(lambda leaf: leaf.unsqueeze(1), obs), *state)
        return values.squeeze(1), after

    def samples(self, columns: dict[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        """Return the steps as they are if the buffer makes sequences, else return sequences.

        Sequences are rows of columns ``[n, burn_in + sequence_length, ...]``, with ``mask`` bool of
        the same shape: False outside the trajectory.
        """
        if self.section.stores_steps:
            return SampleBatch(columns)
        learn = self.section.learn
        stride = max(1, learn.sequence_length // 2)
        begins = np.concatenate(([0], ends[:-1]))
        starts = [np.arange(*piece, stride) for piece in zip(begins, ends, strict=True)]
        counts = [len(each) for each in starts]
        start = np.concatenate(starts)[:, None]
        rows = start + np.arange(-learn.burn_in, learn.sequence_length)
        mask = (rows >= begins.repeat(counts)[:, None]) & (rows < ends.repeat(counts)[:, None])
        rows = np.where(mask, rows, start)
        return SampleBatch({**part_of(columns, rows), "mask": mask})

    def steps_of(self, samples: dict[str, Any]) -> dict[str, Any]:
        learn = self.section.learn
        if not self.section.stores_steps:
            # Sequences overlap by half, and by the burn-in.
            end = learn.burn_in + max(1, learn.sequence_length // 2)
            samples = part_of(samples, np.s_[:, learn.burn_in : end])
        return super().steps_of(samples)

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Train once on a batch of sequences.

        Args:
            batch: Columns ``[n, burn_in + time, ...]``: ``obs``, ``action``, ``reward``,
                ``next_obs``, ``terminated``, ``state``, perhaps ``mask`` (True within the
                trajectory); and perhaps the importance weights ``IS`` [n].

        Returns:
            As ``DQNPolicy.learn``, and the same errors; ``priority`` has one number per sequence.
        """
        steps = tuple(batch["reward"].shape[:2])
        self.check_shapes(batch, action=steps, reward=steps, terminated=steps)
        learn, action = self.section.learn, batch["action"].long() - self._start
        burn_in = learn.burn_in
        everywhere = torch.ones_like(action, dtype=torch.bool)
        mask: Tensor = batch["mask"].bool() if "mask" in batch else everywhere
        obs = self._observations(batch["obs"], batch["next_obs"], mask)
        before = part_of(obs, np.s_[:, :burn_in])
        after = part_of(obs, np.s_[:, burn_in:])
        first = mask.float().argmax(1)
        state = batch["state"][torch.arange(len(first), device=self.device), first].float()

        def values_of(network: nn.Module, warm: nn.Module) -> Tensor:
            """Return action values ``[n, time - burn_in + 1, actions]``."""
            begin = warm.forward(before, state, mask[:, :burn_in])[1] if burn_in else state
            values: Tensor = network.forward(after, begin)[0]
            return values

        values = values_of(self._network, self._acting_network)
        targets = values_of(self._target, self._target)
        greedy = (values.detach() if learn.double else targets).argmax(2, keepdim=True)
        bootstrap = targets.gather(2, greedy).squeeze(2)
        value = values[:, :-1].gather(2, action[:, burn_in:, None]).squeeze(2)
        mask = mask[:, burn_in:]
        reward, discount, index = nstep_in_sequences(
            batch["reward"][:, burn_in:].float(),
            batch["terminated"][:, burn_in:].bool(),
            mask,
            gamma=self.section.discount_factor,
            nstep=self.section.nstep,
        )
        if learn.value_rescale:
            bootstrap = unrescale(bootstrap)
        target = torch.addcmul(reward, discount, bootstrap.gather(1, index))
        if learn.value_rescale:
            target = rescale(target)
        weights = mask.float()
        importance = batch.get("IS")
        if importance is not None:
            weights = weights * importance.float().unsqueeze(1)
        log_vars = self._update(self._loss(value, target, weights), value, target)
        # Means over the steps within the trajectories.
        log_vars["q_value"] = float(value.detach()[mask].mean())
        log_vars["target_q_value"] = float(target[mask].mean())
        if self.section.priority:
            error = (value.detach() - target).abs() * mask
            share, mean = learn.priority_max_share, error.sum(1) / mask.sum(1)
            priority = share * error.amax(1) + (1 - share) * mean
            log_vars["priority"] = priority.tolist()
        return log_vars

    def _observations(self, obs: Any, next_obs: Any, mask: Tensor) -> Any:
        """Return observations ``[n, time + 1, ...]``: the first one, and the one after each step.

        The observation after a step is also the one before the next step, except at the end of an
        episode.
        """
        if isinstance(obs, Mapping):
            return {key: self._observations(obs[key], next_obs[key], mask) for key in obs}
        following = torch.cat((obs[:, 1:], next_obs[:, -1:]), 1)
        inside = mask.view(*mask.shape, *(1,) * (obs.ndim - 2))
        found = torch.cat((obs[:, :1], torch.where(inside, next_obs, following)), 1)
        return self.tensor(found.flatten(0, 1)).unflatten(0, found.shape[:2])


def nstep_in_sequences(
    reward: Tensor, terminated: Tensor, mask: Tensor, *, gamma: float, nstep: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum up to ``nstep`` rewards ahead within each sequence.

    A step near the end of its sequence spans the steps that are left.

    Args:
        reward: float32[n, time].
        terminated: bool[n, time], true where the task ended.
        mask: bool[n, time], True within the trajectory: one stretch, from the first step on.
        gamma: Discount of one step, in [0, 1].
        nstep: Most steps that are spanned, >= 1.

    Returns:
        The sums float32[n, time]; the factors of the bootstrap values float32[n, time], 0 where the
        task ended; and the indices of the bootstrap values among the ``time + 1`` values of a
        sequence, int64[n, time].

    Source: as ``nstep_returns``.
    """
    time = reward.shape[1]
    padded = F.pad(reward * mask, (0, nstep - 1))
    sums = sum(gamma**step * padded[:, step : step + time] for step in range(nstep))
    left = mask.flip(1).cumsum(1).flip(1)
    spanned = left.clamp(max=nstep)
    index = torch.arange(time, device=reward.device) + spanned
    ends = terminated.gather(1, (index - 1).clamp(min=0))
    return torch.as_tensor(sums), gamma ** spanned.float() * ~ends, index


_EPSILON = 1e-3


def rescale(value: Tensor) -> Tensor:
    """Return ``sign(x) (sqrt(|x| + 1) - 1) + 0.001 x``.

    Source: Pohlen et al. 2018, section 3.2; Kapturowski et al. 2019, section 2.3.
    """
    return value.sign() * ((value.abs() + 1).sqrt() - 1) + _EPSILON * value


def unrescale(value: Tensor) -> Tensor:
    """Return the inverse of ``rescale``.

    Source: Pohlen et al. 2018, proposition A.2.
    """
    shifted = value.abs() + 1 + _EPSILON
    root = (1 + 4 * _EPSILON * shifted).sqrt()
    # (root - 1) / (2 * _EPSILON), without the difference of two almost equal numbers.
    return value.sign() * ((2 * shifted / (root + 1)) ** 2 - 1)
