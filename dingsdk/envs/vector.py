"""An env manager over gymnasium's vector envs: native, synchronous or in child processes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dingsdk.config import NotNegative
from dingsdk.envs.base import Capabilities, Obs, StepColumns, Timestep
from dingsdk.envs.guard import ABNORMAL, EPISODE_INFO, ERROR, FAILURES, env_error, restart_seed
from dingsdk.envs.managed import ManagedEnvs
from dingsdk.envs.spaces import is_fresh
from dingsdk.envs.vectorization import (
    AUTORESET_MODES,
    build_vector_env,
    choose_mode,
    close_vector_env,
    final_row,
    info_row,
)
from dingsdk.errors import ConfigError, EnvError, PolicyOutputError

_FLOAT32 = np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)

_log = logging.getLogger(__name__)


class VectorEnvManager(ManagedEnvs):
    """Type ``vector``: all envs move in one call, in columns.

    ``capabilities`` says which promises are kept.

    An env that fails in sync or async mode is rebuilt alone. When a native vector env
    fails, or a child process dies or is late, all envs are rebuilt and all rows of that step
    are abnormal.

    Each step steps all envs. An env that takes no actions (DONE, or waiting for the caller's
    reset) gets a placeholder action, and its rows are not valid.
    """

    class Config(ManagedEnvs.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            vectorization_mode: ``native`` uses the env's own vector env (fast; one random stream
                for all, reset all together, by most in a step of its own); ``sync`` loops in
                this process; ``async`` has a child process for each env; ``auto`` is native
                where possible, else sync.
            autoreset_mode: That of gymnasium; ``auto`` is the native env's own, else
                ``same_step``.
            step_timeout: Seconds that ``async`` waits for the slowest env to step.
            reset_timeout: Seconds that ``async`` waits for the slowest env to be reset.
        """

        vectorization_mode: Literal["auto", "native", "sync", "async"] = "auto"
        autoreset_mode: Literal["auto", "next_step", "same_step", "disabled"] = "auto"
        step_timeout: NotNegative = 60.0
        reset_timeout: NotNegative = 60.0

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        autoreset = AUTORESET_MODES[self._cfg.autoreset_mode]
        mode = self._cfg.vectorization_mode
        self._mode, self._autoreset = choose_mode(mode, autoreset, self._env_fns)
        self._is_native = self._mode == "native"
        self._step_timeout_s: float = self._cfg.step_timeout
        self._reset_timeout_s: float = self._cfg.reset_timeout
        self._vec: Any = None
        self._obs: Obs = None
        # True where the next step is spent on a reset (NEXT_STEP only); None for nowhere.
        self._resetting: NDArray[np.bool_] | None = None
        self._is_next_step = self._autoreset is AutoresetMode.NEXT_STEP
        # Whether an env may have to stop after an episode.
        self._may_park = not self._auto_reset or not math.isinf(self._episode_num)
        # No step was made since all envs were reset.
        self._is_fresh = False
        self._reset_kwargs: dict[int, Mapping[str, Any]] = {}
        self._failures_in_row = 0
        self._rebuilds = 0
        # Infos of the last step, and where the infos of the ended episodes are.
        self._infos: Mapping[str, Any] = {}
        self._final_infos: Mapping[str, Any] = {}

    @property
    def vectorization_mode(self) -> str:
        """The mode in use: ``native``, ``sync`` or ``async``."""
        return self._mode

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            per_env_seed=not self._is_native,
            per_env_reset=not self._is_native,
            partial_step=False,
            reset_takes_step=self._is_next_step,
        )

    def launch(self, reset_param: Mapping[int, Any] | None = None) -> None:
        if self._closed:
            self._reset_kwargs.clear()
            self._parked[:] = False
            self._failures_in_row = self._rebuilds = 0
        super().launch(reset_param)

    def close(self) -> None:
        self._closed = True
        self._discard()

    def seed(
        self, seed: int | Sequence[int] | Mapping[int, int], dynamic_seed: bool | None = None
    ) -> None:
        if self._is_native and not isinstance(seed, int | np.integer):
            raise ConfigError(
                "a native vector env has one random stream and takes one seed; set "
                "env_manager.vectorization_mode to sync for a seed for each env",
                path="env_manager.vectorization_mode",
                found=seed,
            )
        super().seed(seed, dynamic_seed)
        self._rebuilds = 0

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
        vec = build_vector_env(
            self._mode,
            self._autoreset,
            self._env_fns,
            self._cfg,
        )
        self._vec = vec
        self._keeps_seed = False
        self._set_spaces(vec.single_observation_space, vec.single_action_space)
        self._learn_spaces()[0].require_columns()
        if self._is_native:
            self._autoreset = AutoresetMode(vec.metadata.get("autoreset_mode", self._autoreset))
            self._is_next_step = self._autoreset is AutoresetMode.NEXT_STEP
        self._obs_dtype = self._learn_spaces()[0].dtype
        self._move = self._move_async if self._mode == "async" else self._vec.step

    def _discard(self) -> None:
        vec, self._vec = self._vec, None
        if vec is not None:
            close_vector_env(vec)

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        given = {env_id: kwargs[env_id] for env_id in env_ids if kwargs.get(env_id)}
        is_all = len(env_ids) == self._env_num
        if self._is_native and (given or not is_all):
            if self._is_fresh and not given:
                return  # a restart after a failure has done it
            raise ConfigError(
                f"a native vector env resets all envs together and without arguments, asked for "
                f"{dict(kwargs)}; set env_manager.vectorization_mode to sync",
                path="env_manager.vectorization_mode",
                found=sorted(env_ids),
            )
        for env_id, one in given.items():
            unknown = sorted(set(one) - {"seed", "options"})
            if unknown:
                raise ConfigError(
                    f"gymnasium's vector envs reset with seed and options only, found {unknown} "
                    f"for env {env_id}; use env_manager.type in_process",
                    path="env_manager.type",
                    found=unknown,
                )
        self._reset_kwargs.update(given)
        new_seeds = dict(zip(env_ids, self._new_seeds(env_ids), strict=True))
        seeds = [new_seeds.get(env_id) for env_id in range(self._env_num)]
        try:
            self._reset_vec(env_ids, seeds, given)
        except Exception as error:
            self._recover(error)
        rows = list(env_ids)
        self._parked[rows] = False
        self._returns[rows] = 0.0
        if self._resetting is not None:
            self._resetting[rows] = False
        self._is_fresh = is_all

    def _reset_vec(
        self,
        env_ids: Sequence[int],
        seeds: Sequence[int | None],
        kwargs: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Reset rows of the vector env, those in ``kwargs`` with arguments of their own."""
        if self._is_native:
            keep = None if self._dynamic_seed else self._seeds[0]
            self._reset_rows(None, seeds[0] if seeds[0] is not None else keep, {})
            return
        if self._keeps_seed is self._dynamic_seed:
            self._keeps_seed = not self._dynamic_seed
            self._vec.set_attr("keep_seed", self._keeps_seed)
        rows = self._mask(env_ids)
        # A vector env that was never reset needs all rows once before it can do some.
        self._reset_rows(None if rows.all() else rows, list(seeds), {})
        for env_id, given in kwargs.items():
            own: list[int | None] = [None] * self._env_num
            own[env_id] = given.get("seed", seeds[env_id])
            self._reset_rows(self._mask([env_id]), own, given.get("options") or {})

    def _reset_rows(
        self, rows: NDArray[np.bool_] | None, seed: Any, options: Mapping[str, Any]
    ) -> None:
        kwargs: dict[str, Any] = {"seed": seed}
        if rows is not None:
            kwargs["options"] = {**options, "reset_mask": rows}
        if self._mode == "async":
            self._vec.reset_async(**kwargs)
            obs, infos = self._vec.reset_wait(timeout=self._reset_timeout_s)
        else:
            obs, infos = self._vec.reset(**kwargs)
        schema = self._learn_spaces()[0]
        obs = schema.own(obs)
        if self._is_native:
            schema.check_columns(obs, self._env_num)
        self._count_failures(infos)
        self._obs = obs

    def _recover(self, error: Exception) -> None:
        """Count a failure of the whole vector env, build a new one and reset it.

        Raises:
            EnvError: too many failures in a row, of the whole or of one guarded env.
        """
        while True:
            if isinstance(error, EnvError) and not self._is_native:
                raise _guarded_error(error)
            self._failure_count += self._env_num
            self._failures_in_row += 1
            self._discard()
            if self._failures_in_row > self._cfg.max_retry:
                self._closed = True
                raise env_error(error, None, self._failures_in_row) from error
            _log.warning(
                "the %s vector env failed (%d of at most %d in a row); all episodes are "
                "dropped: %s: %s",
                self._mode,
                self._failures_in_row,
                self._cfg.max_retry,
                type(error).__name__,
                error,
            )
            time.sleep(self._cfg.retry_waiting_time)
            self._rebuilds += 1
            try:
                self._open()
                keep = not self._dynamic_seed
                # Not the name that a guarded env takes for a rebuild of its own.
                seeds = [
                    restart_seed(seed, self._rebuilds, keep, "rebuild_all") for seed in self._seeds
                ]
                self._reset_vec(range(self._env_num), seeds, self._reset_kwargs)
            except Exception as again:
                error = again
            else:
                self._resetting = None
                self._returns[:] = 0.0
                self._is_fresh = True
                return

    def _mask(self, env_ids: Sequence[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self._env_num, dtype=np.bool_)
        mask[list(env_ids)] = True
        return mask

    def _count_failures(self, infos: Mapping[str, Any]) -> None:
        if FAILURES in infos:
            self._failure_count += int(np.sum(infos[FAILURES]))

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
        """Finish a step in which an env ended, failed, was reset or took no action."""
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


def _guarded_error(error: EnvError) -> EnvError:
    # gymnasium re-raises a child's error as type(error)(error), which hides the facts and
    # has lost the cause.
    inner = error.args[0]
    if not isinstance(inner, EnvError):
        return error
    inner.add_note(f"In the child process:\n{inner.facts.get('traceback', '')}")
    return inner
