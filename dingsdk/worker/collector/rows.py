"""Collecting in dicts keyed by env id, for policies with only the dict form."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dingsdk.data.action_mask import ACTION_MASK, legal_actions
from dingsdk.data.capture import capture
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.data.columns import mismatch, torch_to_numpy
from dingsdk.data.pytree import to_tensor
from dingsdk.envs.base import EnvManager
from dingsdk.envs.guard import plain_reward
from dingsdk.envs.steps import Timestep
from dingsdk.policy.modes import CollectMode, EvalMode
from dingsdk.worker.collector.policy_output import RandomActions, check_dicts, check_samples
from dingsdk.worker.collector.rollout import EpisodeRecord, Quota, Rollout, Writer


class DictRollout(Rollout):
    """The rollout for any policy.

    The other arguments are those of ``Rollout``.

    Args:
        has_tensor_obs: Whether to pass float32 tensors to a policy that has no batched form;
            observations are recorded unchanged.
        deepcopy_obs: Whether to cache copies, for envs that reuse the memory of observations.
    """

    saved = (*Rollout.saved, "_lengths")

    _writer: RowsWriter | None
    _player_num = 1

    def __init__(
        self,
        env: EnvManager,
        policy: CollectMode | EvalMode,
        writer: RowsWriter | None = None,
        quota: Quota = None,
        has_tensor_obs: bool = False,
        deepcopy_obs: bool = False,
    ) -> None:
        super().__init__(env, policy, writer, quota)
        self._has_tensor_obs = has_tensor_obs
        self._lengths = [0] * self._env_num
        self._obs_pool = CachePool("obs", self._env_num, deepcopy_obs)
        self._output_pool = CachePool("policy_output", self._env_num)
        self._is_asynchronous = env.capabilities.asynchronous
        self._acted: dict[int, int] = {}
        """Of asynchronous envs, the version of the policy that acts in each unfinished step."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self._is_asynchronous:
            # The observations and outputs of envs whose steps are not finished yet.
            pools = (self._obs_pool, self._output_pool)
            items = [[pool[env_id] for env_id in range(self._env_num)] for pool in pools]
            state["pools"] = capture(items, "pools")
            state["acted"] = capture(self._acted, "acted")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for index, items in enumerate(state.get("pools", ())):
            (self._obs_pool, self._output_pool)[index].update(dict(enumerate(capture(items))))
        self._acted = dict(state.get("acted", {}))

    def observe(self) -> dict[int, Any]:
        """Return ``{env_id: obs}`` of the envs to step; empty while all of them are stepping.

        Raises:
            ConfigError: no env waits for an action, and none will wait later.
        """
        obs = self._env.ready_obs
        if self._can_step_some and not self._is_live.all():
            obs = {env_id: value for env_id, value in obs.items() if self._is_live[env_id]}
        if not obs and (self._env.done or not self._env.capabilities.asynchronous):
            self._refuse_to_idle()
        self._obs_pool.update(obs)
        return obs

    def infer(self, obs: dict[int, Any], policy_kwargs: Mapping[str, Any]) -> dict[int, Any]:
        if not obs:
            return {}
        policy = self._policy
        outputs: dict[int, Any] = policy.forward(self._seen(obs, policy), **policy_kwargs)
        check_dicts(outputs, list(obs))
        self._output_pool.update(outputs)
        return outputs

    def _seen(self, obs: Mapping[int, Any], mode: CollectMode | EvalMode) -> Mapping[int, Any]:
        """Return observations in the form that the mode's ``forward`` receives.

        A mode with a batched form converts observations itself, and so gets them unchanged in
        either form. Images, for example, are scaled by their dtype.
        """
        if not self._has_tensor_obs or getattr(mode, "forward_batch", None) is not None:
            return obs
        import torch

        return {i: to_tensor(each, dtype=torch.float32) for i, each in obs.items()}

    def random_output(self, obs: dict[int, Any], actions: RandomActions) -> dict[int, Any]:
        has_masks = all(isinstance(each, Mapping) and ACTION_MASK in each for each in obs.values())
        legal = None
        if obs and has_masks:
            masks = np.stack([each[ACTION_MASK] for each in obs.values()])
            legal = legal_actions({ACTION_MASK: masks}, list(obs))
        drawn = actions.draw(len(obs), legal)
        outputs = {env_id: {"action": drawn[k]} for k, env_id in enumerate(obs)}
        self._output_pool.update(outputs)
        return outputs

    def step_env(self, output: Mapping[int, Any]) -> dict[int, Timestep]:
        actions = {i: torch_to_numpy(each["action"]) for i, each in output.items()}
        return self._env.step({i: np.asarray(action) for i, action in actions.items()})

    def record(self, obs: Any, output: Any, step: Mapping[int, Timestep], train_iter: int) -> None:
        acted = self._acted
        if self._is_asynchronous:
            # A step may end in a later round, when a newer policy acts.
            acted.update(dict.fromkeys(obs, train_iter))
        for env_id in sorted(step):
            version = acted.pop(env_id) if env_id in acted else train_iter
            if self._is_live[env_id]:
                is_recorded = version == train_iter or not self.drops_older
                self._record_one(env_id, step[env_id], version, is_recorded)

    def _record_one(
        self, env_id: int, timestep: Timestep, train_iter: int, is_recorded: bool
    ) -> None:
        infos = timestep.info if isinstance(timestep.info, Sequence) else [timestep.info]
        if any(info.get("abnormal") for info in infos):
            self._abandon([env_id])
            self._lengths[env_id] = 0
            return
        if type(timestep.reward) is not float:
            # Managers that are not dingsdk's may give arrays of shape [1], or tensors.
            reward = plain_reward(torch_to_numpy(timestep.reward), self._player_num)
            timestep = timestep._replace(reward=reward)
        self.env_steps += 1
        self._lengths[env_id] += 1
        if is_recorded:
            self._write(env_id, timestep, train_iter)
        else:
            self.dropped_rows += self._rows_per_step
            if timestep.done and self._writer is not None:
                self._writer.drop([env_id])
        if timestep.done:
            length, self._lengths[env_id] = self._lengths[env_id], 0
            self._end_episodes([env_id], [self._episode(env_id, timestep, length)])

    @property
    def _rows_per_step(self) -> int:
        """How many writers record a step."""
        return int(self._writer is not None)

    def _write(self, env_id: int, timestep: Timestep, train_iter: int) -> None:
        """Record the transition of one env."""
        if self._writer is not None:
            process: Any = self._policy.process_transition  # type: ignore[union-attr]
            transition = process(self._obs_pool[env_id], self._output_pool[env_id], timestep)
            if timestep.done:
                self._writer.episode_returns = {env_id: return_of(timestep.info)}
            self._writer.record(env_id, transition, train_iter, bool(timestep.done))

    def _episode(self, env_id: int, timestep: Timestep, length: int) -> EpisodeRecord:
        info = timestep.info.get("episode_info") or {}
        return EpisodeRecord(env_id, return_of(timestep.info), length, info)


def return_of(info: Mapping[str, Any]) -> float:
    """Return the episode return from the last info of an env or a player."""
    return float(np.sum(np.asarray(torch_to_numpy(info["eval_episode_return"]))))


def piece_only(make_samples: Callable[..., list[Any]]) -> Callable[[int, list[Any]], list[Any]]:
    """Return a policy's ``get_train_sample`` with the signature that ``RowsWriter`` calls."""
    return lambda _, piece: make_samples(piece)


class RowsWriter(Writer):
    """Keeps a buffer of transitions per env and converts those that end or are full.

    Args:
        env_num: Number of envs.
        traj_len: A trajectory is cut when it holds this many transitions; None for only
            at its end.
        make_samples: Called as ``make_samples(env_id, transitions)``; returns samples.
        deepcopy: Whether to store copies of the transitions, no two of which share an
            observation.
        is_unroll: Whether trajectories are only cut when they hold ``traj_len`` transitions.
    """

    def __init__(
        self,
        env_num: int,
        traj_len: int | None,
        make_samples: Callable[[int, list[dict[str, Any]]], list[Any]],
        deepcopy: bool = False,
        is_unroll: bool = False,
    ) -> None:
        self._traj_len = traj_len
        self._is_unroll = is_unroll
        self._make_samples = make_samples
        self._deepcopy = deepcopy
        super().__init__(env_num)

    @property
    def unfinished_rows(self) -> int:
        return sum(map(len, self._trajectories))

    def clear(self) -> None:
        self._trajectories = [
            TrajBuffer(self._traj_len, deepcopy=self._deepcopy) for _ in range(self._env_num)
        ]
        self._pieces: list[list[Any]] = []
        self.pending_rows = 0

    def state_dict(self) -> dict[str, Any]:
        rows = [list(each) for each in self._trajectories]
        return {**super().state_dict(), "trajectories": capture(rows, "trajectories")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for trajectory, rows in zip(self._trajectories, state["trajectories"], strict=True):
            trajectory[:] = capture(rows)

    def record(
        self, env_id: int, transition: dict[str, Any], train_iter: int, is_done: bool
    ) -> None:
        """Append one transition of one env.

        Raises:
            SchemaMismatchError: there is a ``gamma``, and no ``reward``.
        """
        transition["collect_iter"] = train_iter
        if self.level_seeds is not None:
            transition["seed"] = self.level_seeds[env_id]
        if self.gamma is not None:
            if "reward" not in transition:
                expected = "a number, for policy.normalize.reward"
                raise mismatch("the policy's process_transition", "reward", expected, "none")
            reward = float(transition["reward"])
            discounted = self.gamma * float(self._discounted[env_id]) + reward
            transition[DISCOUNTED_RETURN] = discounted
            self._discounted[env_id] = 0.0 if is_done else discounted
        trajectory = self._trajectories[env_id]
        trajectory.append(transition)
        if (is_done and not self._is_unroll) or len(trajectory) == self._traj_len:
            self._convert(env_id)

    def cut_unfinished(self) -> None:
        if self._traj_len is not None and not self._is_unroll:
            for env_id in range(self._env_num):
                self.cut(env_id)

    def cut(self, env_id: int) -> None:
        """Cut the trajectory of one env now."""
        if self._trajectories[env_id]:
            self._convert(env_id)

    def drop(self, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._trajectories[env_id].clear()
            self._discounted[env_id] = 0.0

    def flush(self) -> list[Any] | None:
        return [sample for piece in self.flush_each() for sample in piece] or None

    def flush_each(self) -> list[list[Any]]:
        pieces, self._pieces = self._pieces, []
        self.pending_rows = 0
        return pieces

    def _convert(self, env_id: int) -> None:
        trajectory = self._trajectories[env_id]
        facts = {"env_id": env_id, "episode_return": self.episode_returns.get(env_id, math.nan)}
        self.episode_returns = {}
        added = {name: facts[name] for name in self.added_columns}
        for transition in trajectory if added else ():
            transition.update(added)
        # In an unroll the next observation of an episode's last step is not that of the next step.
        shares = not (self._deepcopy or self._is_unroll)
        converted = to_tensor_transitions(trajectory, shares)
        samples = check_samples(self._make_samples(env_id, converted), "get_train_sample")
        for sample in samples if added else ():
            if isinstance(sample, dict):  # the policy may have left the columns out
                sample.update(added)
        self._pieces.append(samples)
        self.pending_rows += len(self._pieces[-1])
        trajectory.clear()


class CachePool:
    """Stores the last item of each env, until it is reset.

    Args:
        name: Name of the items.
        env_num: Number of envs; valid indices are ``0 .. env_num - 1``.
        deepcopy: Whether to store copies, for envs that reuse the memory of observations.
    """

    def __init__(self, name: str, env_num: int, deepcopy: bool = False) -> None:
        self.name = name
        self._deepcopy = deepcopy
        self._items: list[Any] = [None] * env_num

    def update(self, data: Mapping[int, Any] | Sequence[Mapping[int, Any]]) -> None:
        """Store one item for each env; from a sequence of mappings, store a list of items.

        A sequence with one element also stores a list, so that the number of players can be read
        from the stored item (DI-engine stores the bare item).
        """
        if not isinstance(data, Mapping):
            data = {index: [each[index] for each in data] for index in data[0]}
        for index, item in data.items():
            self._items[index] = copy.deepcopy(item) if self._deepcopy else item

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def reset(self, index: int) -> None:
        """Remove the item of one env."""
        self._items[index] = None


class TrajBuffer(list[Any]):
    """A list of transitions that keeps the newest ``maxlen`` of them.

    Args:
        maxlen: Largest length; None or infinity for no limit.
        *args: As for ``list``.
        deepcopy: Whether to append copies.
    """

    def __init__(self, maxlen: float | None, *args: Any, deepcopy: bool = False) -> None:
        super().__init__(*args)
        self._maxlen = None if maxlen is None or math.isinf(maxlen) else int(maxlen)
        self._deepcopy = deepcopy
        self._evict()

    def append(self, item: Any) -> None:
        """Append ``item``; remove the oldest items beyond ``maxlen``."""
        super().append(copy.deepcopy(item) if self._deepcopy else item)
        self._evict()

    def _evict(self) -> None:
        if self._maxlen is not None and len(self) > self._maxlen:
            del self[: len(self) - self._maxlen]


def to_tensor_transitions(
    data: Sequence[dict[str, Any]], shallow_copy_next_obs: bool = True
) -> list[dict[str, Any]]:
    """Convert the transitions of one trajectory to tensors; scalars such as ``done`` stay.

    Args:
        data: Transitions of one contiguous trajectory, oldest first.
        shallow_copy_next_obs: Whether to use the ``obs`` object of the following transition as
            ``next_obs``, which halves the memory. Ignored without ``next_obs``.

    Returns:
        New dicts, one for each transition; empty for empty ``data``.
    """
    if not data:
        return []
    if not shallow_copy_next_obs or "next_obs" not in data[0]:
        return [to_tensor(each, transform_scalar=False) for each in data]
    shared = [{k: v for k, v in each.items() if k != "next_obs"} for each in data[:-1]]
    converted = [to_tensor(each, transform_scalar=False) for each in [*shared, data[-1]]]
    for current, following in itertools.pairwise(converted):
        current["next_obs"] = following["obs"]
    return converted
