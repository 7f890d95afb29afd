"""The slow side of the vector env manager: opening, resets, failures of the whole."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from dingsdk.envs.base import Capabilities, Obs
from dingsdk.envs.guard import FAILURES, env_error, restart_seed
from dingsdk.envs.lifecycle import ManagedEnvs, choice, number
from dingsdk.envs.vectorization import (
    AUTORESET_MODES,
    MODES,
    build_vector_env,
    choose_mode,
    close_vector_env,
)
from dingsdk.errors import ConfigError, EnvError

_log = logging.getLogger(__name__)


class VectorResets(ManagedEnvs):
    """Owns the gymnasium vector env of a VectorEnvManager and brings it to episode starts."""

    config: ClassVar[dict[str, Any]] = {
        "vectorization_mode": "auto",
        "autoreset_mode": "auto",
        "step_timeout": 60.0,
        "reset_timeout": 60.0,
    }

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        autoreset = AUTORESET_MODES[choice(self._cfg, "autoreset_mode", tuple(AUTORESET_MODES))]
        mode = choice(self._cfg, "vectorization_mode", MODES)
        self._mode, self._autoreset = choose_mode(mode, autoreset, self._env_fns)
        self._is_native = self._mode == "native"
        self._step_timeout_s = number(self._cfg, "step_timeout", minimum=0)
        self._reset_timeout_s = number(self._cfg, "reset_timeout", minimum=0)
        self._vec: Any = None
        self._obs: Obs = None
        # True where the next step is spent on a reset (NEXT_STEP only); None for nowhere.
        self._resetting: NDArray[np.bool_] | None = None
        self._is_next_step = self._autoreset is AutoresetMode.NEXT_STEP
        # Whether an env can ever be left without a next episode.
        self._may_park = not self._auto_reset or not math.isinf(self._episode_num)
        # No step was made since all envs were reset.
        self._is_fresh = False
        self._reset_kwargs: dict[int, Mapping[str, Any]] = {}
        self._keeps_seed = False
        self._failures_in_row = 0
        self._rebuilds = 0

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
            self._failures_in_row = 0
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

    def _open(self) -> None:
        vec = build_vector_env(
            self._mode,
            self._autoreset,
            self._env_fns,
            max_retry=self._max_retry,
            retry_type=self._retry_type,
            retry_waiting_s=self._retry_waiting_s,
        )
        self._vec = vec
        self._keeps_seed = False
        self._set_spaces(vec.single_observation_space, vec.single_action_space)
        self._learn_spaces()[0].require_columns()
        if self._is_native:
            self._autoreset = AutoresetMode(vec.metadata.get("autoreset_mode", self._autoreset))
            self._is_next_step = self._autoreset is AutoresetMode.NEXT_STEP

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
            if self._failures_in_row > self._max_retry:
                self._closed = True
                raise env_error(error, None, self._failures_in_row) from error
            _log.warning(
                "the %s vector env failed (%d of at most %d in a row); all episodes are "
                "dropped: %s: %s",
                self._mode,
                self._failures_in_row,
                self._max_retry,
                type(error).__name__,
                error,
            )
            if self._retry_waiting_s:
                time.sleep(self._retry_waiting_s)
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


def _guarded_error(error: EnvError) -> EnvError:
    # gymnasium re-raises a child's error as type(error)(error), which hides the facts and
    # has lost the cause.
    inner = error.args[0]
    if not isinstance(inner, EnvError):
        return error
    inner.add_note(f"In the child process:\n{inner.facts.get('traceback', '')}")
    return inner
