"""Rounds in columns: no Python loop over envs unless an episode ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.base import EnvManager, Obs, StepColumns
from dingsdk.worker.collector.columns_writer import ColumnsWriter
from dingsdk.worker.collector.policy_output import check_columns
from dingsdk.worker.collector.random_actions import RandomActions
from dingsdk.worker.collector.rollout import ActingMode, Rollout


class BatchedRollout(Rollout):
    """The rollout for policies with ``forward_batch``.

    Args:
        env: See ``Rollout``.
        policy: A mode with ``forward_batch``; with a writer also ``make_transitions``.
        writer: See ``Rollout``.
        quota: See ``Rollout``.
        random_actions: Source of random actions.
    """

    def __init__(
        self,
        env: EnvManager,
        policy: ActingMode,
        writer: ColumnsWriter | None = None,
        quota: NDArray[np.int64] | None = None,
        random_actions: RandomActions | None = None,
    ) -> None:
        super().__init__(env, policy, writer, quota)
        self._columns_writer = writer
        self._forward = policy.forward_batch
        self._make_transitions: Any = getattr(policy, "make_transitions", None)
        self._random_actions = random_actions

    def begin(self) -> None:
        super().begin()
        self._all_ids = np.arange(self._env_num)
        self._env_ids = self._all_ids
        # What is passed to the manager and the writer: None is their fast path for all envs.
        self._subset: NDArray[np.int64] | None = None
        self._is_partial = False
        self._time = 0
        # Time at which each env's episode began: lengths need no counting step by step.
        self._begun = np.zeros(self._env_num, np.int64)
        self._obs = self._env.current_obs()

    def observe(self) -> Obs:
        """Return the observation columns of the envs to step."""
        return self._obs

    def infer(self, obs: Obs, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        output: dict[str, Any] = self._forward(obs, self._env_ids, **policy_kwargs)
        check_columns(output, len(self._env_ids))
        return output

    def random_output(self, obs: Obs) -> dict[str, Any]:
        if self._random_actions is None:
            self._random_actions = RandomActions(self._env.action_space, None)
        return {"action": self._random_actions.draw(len(self._env_ids))}

    def step_env(self, output: Mapping[str, Any]) -> StepColumns:
        return self._env.step_batch(output["action"], self._subset)

    def forget_unfinished(self) -> None:
        super().forget_unfinished()
        self._begun[:] = self._time

    def record(self, obs: Obs, output: Any, step: StepColumns, train_iter: int) -> None:
        self._obs = step.obs
        self._time += 1
        writer = self._columns_writer
        if writer is not None:
            transitions = self._make_transitions(obs, output, step)
            writer.record(transitions, train_iter, self._subset)
        ended = step.terminated | step.truncated
        if self._is_partial or step.abnormal is not None:
            ended = self._count_some(step, ended)
        else:
            # Rows that are not valid have a reward of 0 and have not ended.
            np.add(self._returns, step.reward, self._returns)
            self.env_steps += self._env_num
            if step.valid is not None:
                if not step.valid.any() and self._env.done:
                    self._refuse_to_idle()
                self._skip((~step.valid).nonzero()[0])
        if not np.count_nonzero(ended):
            if writer is not None:
                writer.cut(None)
            return
        env_ids = ended.nonzero()[0]
        if writer is not None:
            # Before any env retires, which would take its last trajectory along.
            writer.cut(env_ids)
        lengths = (self._time - self._begun[env_ids]).tolist()
        self._begun[env_ids] = self._time
        infos = None
        if step.episode_info:
            infos = {int(self._env_ids[row]): info for row, info in step.episode_info.items()}
        self._end_episodes(env_ids, lengths, infos)

    def _skip(self, env_ids: NDArray[np.int64]) -> None:
        """Take back what a round counted for envs that made no transition in it."""
        self.env_steps -= len(env_ids)
        self._begun[env_ids] = self._time
        if self._writer is not None:
            self._writer.drop(env_ids)

    def _count_some(self, step: StepColumns, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count a round in which envs failed, or in which some envs have retired.

        Returns:
            bool[env_num]: live envs whose episode ended in a valid step.
        """
        env_ids = self._env_ids
        live = self._is_live[env_ids]
        counts = live if step.valid is None else live & step.valid
        if step.abnormal is not None:
            counts = counts & ~step.abnormal
            failed = env_ids[step.abnormal & live]
            if len(failed):
                self._abandon(failed)
        self._returns[env_ids[counts]] += step.reward[counts]
        self.env_steps += int(np.count_nonzero(live))
        self._skip(env_ids[live & ~counts])
        ended_envs = np.zeros(self._env_num, np.bool_)
        ended_envs[env_ids[ended & counts]] = True
        return ended_envs

    def _on_retired(self) -> None:
        self._is_partial = True
        if self._can_step_some:
            stay = self._is_live[self._env_ids]
            self._obs = _rows(self._obs, stay)
            self._env_ids = self._subset = self._env_ids[stay]


def _rows(obs: Obs, mask: NDArray[np.bool_]) -> Obs:
    if isinstance(obs, Mapping):
        return {key: _rows(value, mask) for key, value in obs.items()}
    return obs[mask]
