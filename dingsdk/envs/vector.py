"""An env manager over gymnasium's vector envs: native, synchronous or in child processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dingsdk.envs.base import Obs, StepColumns, Timestep
from dingsdk.envs.guard import ABNORMAL, ERROR, FAILURES
from dingsdk.envs.info import EPISODE_INFO, final_row, info_row
from dingsdk.envs.observation import is_fresh
from dingsdk.envs.vector_resets import VectorResets
from dingsdk.errors import PolicyOutputError

_FLOAT32 = np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)


class VectorEnvManager(VectorResets):
    """Type ``vector``: all envs move in one call, in columns.

    ``vectorization_mode``: ``native`` uses the env's own vector env (fast; one random stream
    for all, reset all together, by most in a step of its own); ``sync`` loops in this
    process; ``async`` has a child process for each env; ``auto`` is native where possible,
    else sync. ``autoreset_mode`` (``next_step``, ``same_step``, ``disabled``) is gymnasium's;
    ``auto`` is the native env's own, else ``same_step``. ``step_timeout`` and
    ``reset_timeout`` bound, in seconds, how long ``async`` waits for the slowest env.
    ``capabilities`` says which promises are kept. Other keys: see ManagedEnvs.

    An env that fails in sync or async mode is rebuilt alone. When a native vector env
    fails, or a child process dies or is late, all envs are rebuilt and all rows of that step
    are abnormal.

    All envs are stepped always. One that takes no actions (DONE, or waiting for the caller's
    reset) is stepped with a filler and its rows are not valid.
    """

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        # Infos of the last step, and where the infos of the ended episodes are.
        self._infos: Mapping[str, Any] = {}
        self._final_infos: Mapping[str, Any] = {}

    def current_obs(self) -> Obs:
        self._check_open()
        return self._obs

    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        if self._schema is None or self._actions is None or self._vec is None:
            self._check_open()
            raise AssertionError("an open manager knows its spaces")
        if env_ids is not None:
            self._check_all_named(env_ids)
        actions = self._actions.batch(actions, self._env_num)
        try:
            obs, reward, terminated, truncated, infos = self._move(actions)
            if self._is_native:
                if not is_fresh(obs, self._obs_dtype):
                    obs = self._schema.own(obs)
                if not is_fresh(reward, _FLOAT32):
                    reward = np.array(reward, dtype=_FLOAT32)
                if not is_fresh(terminated, _BOOL):
                    terminated = np.array(terminated, dtype=_BOOL)
                if not is_fresh(truncated, _BOOL):
                    truncated = np.array(truncated, dtype=_BOOL)
                self._schema.check_columns(obs, self._env_num)
            else:
                obs = self._schema.own(obs)
                reward = reward.astype(np.float32)
            self._infos = infos
            self._is_fresh = False
            # Looking for a byte costs a fraction of any() on arrays this small.
            has_ended = b"\x01" in terminated.tobytes() or b"\x01" in truncated.tobytes()
            if (
                (has_ended and not self._is_next_step)
                or self._may_park
                or (infos and (ABNORMAL in infos or FAILURES in infos or EPISODE_INFO in infos))
            ):
                return self._settle(obs, reward, terminated, truncated, infos)
            # All that is left is plain transitions and, in NEXT_STEP, rows that were reset.
            self._obs = obs
            resetting = self._resetting
            if has_ended:
                self._failures_in_row = 0
                self._final_infos = infos
                self._resetting = terminated | truncated
            elif resetting is None:
                return StepColumns(obs, obs, reward, terminated, truncated)
            else:
                self._resetting = None
            valid = None if resetting is None else ~resetting
            return StepColumns(obs, obs, reward, terminated, truncated, valid)
        except Exception as error:
            return self._restart(error)

    @property
    def ready_obs(self) -> dict[int, Any]:
        self._check_open()
        schema = self._learn_spaces()[0]
        return {
            row: schema.row(self._obs, row) for row in np.flatnonzero(self._is_ready()).tolist()
        }

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the envs; all that are ready must be named.

        An env whose reset takes a step (``capabilities.reset_takes_step``) is not ready for
        one round; when none is left, the round is spent here.
        """
        self._check_open()
        schema, checker = self._learn_spaces()
        is_ready = self._is_ready()
        ready = np.flatnonzero(is_ready).tolist()
        if sorted(actions) != ready:
            raise self._wrong_envs(ready, sorted(actions))
        batch = checker.filler(self._env_num)
        for row, action in actions.items():
            batch[row] = checker.single(action)
        columns = self.step_batch(batch)
        timesteps = {row: self._timestep(schema, columns, row) for row in ready}
        if not self._is_ready().any() and self._resetting is not None:
            self.step_batch(checker.filler(self._env_num))
        return timesteps

    def _open(self) -> None:
        super()._open()
        self._obs_dtype = self._learn_spaces()[0].dtype
        self._move = self._move_async if self._mode == "async" else self._vec.step

    def _move_async(self, actions: NDArray[Any]) -> Any:
        self._vec.step_async(actions)
        return self._vec.step_wait(timeout=self._step_timeout_s)

    def _settle(
        self,
        obs: Obs,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: Mapping[str, Any],
    ) -> StepColumns:
        """Finish a step in which something happened besides plain transitions."""
        valid = ~self._parked
        if self._resetting is not None:
            valid &= ~self._resetting
            self._resetting = None
        self._count_failures(infos)
        abnormal = np.asarray(infos.get(ABNORMAL, False), dtype=np.bool_) & valid
        valid &= ~abnormal
        ended = terminated | truncated
        final_obs = obs
        self._final_infos = infos
        if ended.any():
            self._failures_in_row = 0
            if self._autoreset is AutoresetMode.NEXT_STEP:
                self._resetting = ended
            elif self._autoreset is AutoresetMode.SAME_STEP:
                final_obs = self._final_obs(obs, ended, infos)
                self._final_infos = infos.get("final_info", infos)
            else:
                obs = self._reset_ended(ended)
        self._obs = obs
        rows = np.flatnonzero(ended & valid)
        if rows.size:
            self._count_episodes(rows)
        is_all_valid = valid.all()
        if not is_all_valid:
            reward *= valid
            terminated &= valid
            truncated &= valid
        return StepColumns(
            obs,
            final_obs,
            reward,
            terminated,
            truncated,
            valid=None if is_all_valid else valid,
            abnormal=abnormal if abnormal.any() else None,
            episode_info=self._episode_info(rows),
        )

    def _reset_ended(self, ended: NDArray[np.bool_]) -> Obs:
        """Reset the ended rows in mode DISABLED, and return the new observations."""
        keep = self._seeds[0] if self._is_native and not self._dynamic_seed else None
        self._reset_rows(ended, keep if self._is_native else [keep] * self._env_num, {})
        return self._obs

    def _restart(self, error: Exception) -> StepColumns:
        """Answer a failed step: all envs begin a new episode."""
        self._recover(error)
        count = self._env_num
        taking_part = ~self._parked
        self._infos = {ERROR: [f"{type(error).__name__}: {error}"] * count}
        return StepColumns(
            self._obs,
            self._obs,
            np.zeros(count, dtype=np.float32),
            np.zeros(count, dtype=np.bool_),
            np.zeros(count, dtype=np.bool_),
            valid=np.zeros(count, dtype=np.bool_),
            abnormal=taking_part,
        )

    def _final_obs(self, obs: Obs, ended: NDArray[np.bool_], infos: Mapping[str, Any]) -> Obs:
        schema = self._learn_spaces()[0]
        rows = np.flatnonzero(ended).tolist()
        values = [schema.conform(final_row(infos["final_obs"], row)) for row in rows]
        return schema.replace(obs, rows, values)

    def _episode_info(self, rows: NDArray[np.int64]) -> Mapping[int, Mapping[str, Any]]:
        if EPISODE_INFO not in self._final_infos:
            return {}
        all_rows = {int(row): info_row(self._final_infos, row) for row in rows}
        return {row: info[EPISODE_INFO] for row, info in all_rows.items() if info.get(EPISODE_INFO)}

    def _timestep(self, schema: Any, columns: StepColumns, row: int) -> Timestep:
        if columns.abnormal is not None and columns.abnormal[row]:
            self._returns[row] = 0.0
            info = info_row(self._infos, row)
            info.update({"terminated": False, "truncated": False, ABNORMAL: True})
            return Timestep(schema.row(columns.obs, row), 0.0, False, info)
        reward = float(columns.reward[row])
        terminated, truncated = bool(columns.terminated[row]), bool(columns.truncated[row])
        self._returns[row] += reward
        done = terminated or truncated
        info = info_row(self._final_infos if done else self._infos, row)
        info.update(terminated=terminated, truncated=truncated)
        if done:
            info.setdefault("eval_episode_return", float(self._returns[row]))
            self._returns[row] = 0.0
        return Timestep(schema.row(columns.final_obs, row), reward, done, info)

    def _is_ready(self) -> NDArray[np.bool_]:
        return ~self._parked if self._resetting is None else ~self._parked & ~self._resetting

    def _check_all_named(self, env_ids: NDArray[np.int64]) -> None:
        everyone = list(range(self._env_num))
        if list(env_ids) != everyone:
            raise self._wrong_envs(everyone, [int(env_id) for env_id in env_ids])

    @staticmethod
    def _wrong_envs(expected: Sequence[int], found: Sequence[int]) -> PolicyOutputError:
        return PolicyOutputError(
            f"a vector env steps all its envs together: actions are needed for {expected}, found "
            f"{found}; env_manager.type in_process can step some alone",
            key="env_id",
            expected=expected,
            found=found,
        )
