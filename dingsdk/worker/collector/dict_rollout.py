"""Rounds in dicts keyed by env id, for policies with only the dict form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.base import EnvManager, Timestep
from dingsdk.worker.collector.policy_output import check_dicts
from dingsdk.worker.collector.random_actions import RandomActions
from dingsdk.worker.collector.rollout import ActingMode, Rollout
from dingsdk.worker.collector.rows_writer import RowsWriter
from dingsdk.worker.collector.trajectory import CachePool


class DictRollout(Rollout):
    """The rollout for any policy.

    Args:
        env: See ``Rollout``.
        policy: A mode; ``forward({env_id: obs}) -> {env_id: {'action': ...}}``.
        writer: See ``Rollout``.
        quota: See ``Rollout``.
        random_actions: Source of random actions.
        has_tensor_obs: Give the policy float32 tensors; what is recorded stays raw.
        deepcopy_obs: Cache copies, for envs that reuse the memory of their observations.
    """

    def __init__(
        self,
        env: EnvManager,
        policy: ActingMode,
        writer: RowsWriter | None = None,
        quota: NDArray[np.int64] | None = None,
        random_actions: RandomActions | None = None,
        has_tensor_obs: bool = False,
        deepcopy_obs: bool = False,
    ) -> None:
        self._deepcopy_obs = deepcopy_obs
        self._has_tensor_obs = has_tensor_obs
        self._random_actions = random_actions
        self._rows_writer = writer
        super().__init__(env, policy, writer, quota)

    def begin(self) -> None:
        super().begin()
        self._lengths = [0] * self._env_num
        self._obs_pool = CachePool("obs", self._env_num, self._deepcopy_obs)
        self._output_pool = CachePool("policy_output", self._env_num)

    def observe(self) -> dict[int, Any]:
        """Return ``{env_id: obs}`` of the envs to step.

        Raises:
            ConfigError: no env waits for an action.
        """
        obs = self._env.ready_obs
        if self._can_step_some and not self._is_live.all():
            obs = {env_id: value for env_id, value in obs.items() if self._is_live[env_id]}
        if not obs:
            self._refuse_to_idle()
        self._obs_pool.update(obs)
        return obs

    def infer(self, obs: dict[int, Any], policy_kwargs: Mapping[str, Any]) -> dict[int, Any]:
        seen: Any = obs
        if self._has_tensor_obs:
            import torch

            from dingsdk.data.pytree import to_tensor

            seen = {i: to_tensor(value, dtype=torch.float32) for i, value in obs.items()}
        outputs: dict[int, Any] = self._policy.forward(seen, **policy_kwargs)
        check_dicts(outputs, list(obs))
        self._output_pool.update(outputs)
        return outputs

    def random_output(self, obs: dict[int, Any]) -> dict[int, Any]:
        if self._random_actions is None:
            self._random_actions = RandomActions(self._env.action_space, None)
        drawn = self._random_actions.draw(len(obs))
        outputs = {env_id: {"action": drawn[k]} for k, env_id in enumerate(obs)}
        self._output_pool.update(outputs)
        return outputs

    def step_env(self, output: Mapping[int, Any]) -> dict[int, Timestep]:
        return self._env.step({i: _as_array(each["action"]) for i, each in output.items()})

    def record(self, obs: Any, output: Any, step: Mapping[int, Timestep], train_iter: int) -> None:
        for env_id in sorted(step):
            if self._is_live[env_id]:
                self._record_one(env_id, step[env_id], train_iter)

    def forget_unfinished(self) -> None:
        super().forget_unfinished()
        self._lengths = [0] * self._env_num

    def _record_one(self, env_id: int, timestep: Timestep, train_iter: int) -> None:
        index = np.array([env_id])
        if timestep.info.get("abnormal"):
            self._abandon(index)
            self._forget(env_id)
            return
        self.env_steps += 1
        self._lengths[env_id] += 1
        self._returns[env_id] += float(np.sum(np.asarray(timestep.reward)))
        if self._rows_writer is not None:
            self._rows_writer.record(
                env_id,
                self._policy.process_transition(  # type: ignore[attr-defined]
                    self._obs_pool[env_id], self._output_pool[env_id], timestep
                ),
                train_iter,
                bool(timestep.done),
            )
        if timestep.done:
            length = self._lengths[env_id]
            self._forget(env_id)
            info = dict(timestep.info.get("episode_info") or {})
            if "eval_episode_return" in timestep.info:
                info["eval_episode_return"] = timestep.info["eval_episode_return"]
            self._end_episodes(index, [length], {env_id: info})

    def _forget(self, env_id: int) -> None:
        self._lengths[env_id] = 0
        self._obs_pool.reset(env_id)
        self._output_pool.reset(env_id)


def _as_array(action: Any) -> NDArray[Any]:
    if hasattr(action, "detach"):
        action = action.detach().cpu().numpy()
    return np.asarray(action)
