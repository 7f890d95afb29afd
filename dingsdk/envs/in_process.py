"""An env manager that steps single envs one after the other in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.envs.base import Capabilities, Obs, StepColumns, Timestep
from dingsdk.envs.guard import ABNORMAL, EPISODE_INFO, FAILURES, GuardedEnv, close_quietly
from dingsdk.envs.managed import ManagedEnvs
from dingsdk.errors import ConfigError, PolicyOutputError


class InProcessEnvManager(ManagedEnvs):
    """Types ``in_process`` and ``base``: a loop over single envs; it supports everything.

    Each env has its own seed, is reset on its own and can be stepped on its own. Envs may
    have any observation space in the dict form; the batched form needs columns. For the
    config keys see ManagedEnvs.
    """

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        self._envs: list[GuardedEnv] = []
        self._obs: list[Any] = [None] * self._env_num

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def close(self) -> None:
        envs, self._envs = self._envs, []
        self._closed = True
        for env in envs:
            close_quietly(env)

    @property
    def ready_obs(self) -> dict[int, Any]:
        self._check_open()
        return {
            env_id: obs
            for env_id, (obs, parked) in enumerate(zip(self._obs, self._parked, strict=True))
            if not parked
        }

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """``{env_id: image [height, width, 3]}`` of the envs that wait for an action.

        Raises:
            ConfigError: the envs were not made with ``env.kwargs.render_mode: rgb_array``, or
                a package that they render with is missing.
        """
        return {env_id: self._image(env_id) for env_id in self.ready_obs}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        self._check_open()
        self._check_ids(actions)
        self._check_running(list(actions))
        checker = self._learn_spaces()[1]
        checked = {env_id: checker.single(action) for env_id, action in actions.items()}
        return {env_id: self._step_one(env_id, action) for env_id, action in checked.items()}

    def current_obs(self) -> Obs:
        self._check_open()
        return self._learn_spaces()[0].stack(self._obs)

    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        self._check_open()
        schema, checker = self._learn_spaces()
        if env_ids is None:
            ids = list(range(self._env_num))
        else:
            self._check_ids(env_ids)
            ids = [int(env_id) for env_id in env_ids]
            self._check_running(ids)
        count = len(ids)
        actions = checker.batch(actions, count)
        schema.require_columns()
        reward = np.zeros(count, dtype=np.float32)
        terminated = np.zeros(count, dtype=np.bool_)
        truncated = np.zeros(count, dtype=np.bool_)
        valid = np.ones(count, dtype=np.bool_)
        abnormal = np.zeros(count, dtype=np.bool_)
        last_obs: list[Any] = []
        episode_info: dict[int, Mapping[str, Any]] = {}
        for row, env_id in enumerate(ids):
            if self._parked[env_id]:
                valid[row] = False
                last_obs.append(self._obs[env_id])
                continue
            obs, reward[row], terminated[row], truncated[row], info = self._envs[env_id].step(
                actions[row]
            )
            last_obs.append(obs)
            self._obs[env_id] = obs
            if info.get(ABNORMAL):
                self._failure_count += info[FAILURES]
                valid[row], abnormal[row] = False, True
            elif terminated[row] or truncated[row]:
                if info.get(EPISODE_INFO):
                    episode_info[row] = info[EPISODE_INFO]
                self._end_episode(env_id)
        final_obs = schema.stack(last_obs)
        is_any_ended = terminated.any() or truncated.any()
        return StepColumns(
            obs=schema.stack([self._obs[env_id] for env_id in ids]) if is_any_ended else final_obs,
            final_obs=final_obs,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=None if valid.all() else valid,
            abnormal=abnormal if abnormal.any() else None,
            episode_info=episode_info,
        )

    def _image(self, env_id: int) -> NDArray[Any]:
        env, path = self._envs[env_id], "env.kwargs.render_mode"
        try:
            image = env.render() if env.render_mode == "rgb_array" else None
        except (gym.error.Error, ImportError) as error:
            raise ConfigError(f"{path}: the envs cannot render: {error}", path=path) from error
        if not isinstance(image, np.ndarray):
            raise ConfigError(
                f"{path} is {env.render_mode!r}, so the envs give no images; set it to rgb_array",
                path=path,
                expected="rgb_array",
                found=env.render_mode,
            )
        return image

    def _open(self) -> None:
        for env_id, env_fn in enumerate(self._env_fns):
            self._envs.append(GuardedEnv(env_fn, env_id, self._cfg))
        self._set_spaces(self._envs[0].observation_space, self._envs[0].action_space)

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        for env_id, seed in zip(env_ids, self._new_seeds(env_ids), strict=True):
            self._reset_one(env_id, {"seed": seed, **(kwargs.get(env_id) or {})})
            self._parked[env_id] = False

    def _reset_one(self, env_id: int, kwargs: Mapping[str, Any]) -> None:
        env = self._envs[env_id]
        env.keep_seed = not self._dynamic_seed
        self._obs[env_id], info = env.reset(**kwargs)
        self._failure_count += info.get(FAILURES, 0)
        self._returns[env_id] = 0.0

    def _step_one(self, env_id: int, action: Any) -> Timestep:
        obs, reward, terminated, truncated, info = self._envs[env_id].step(action)
        info = {**info, "terminated": terminated, "truncated": truncated}
        self._obs[env_id] = obs
        done = terminated or truncated
        if info.get(ABNORMAL):
            self._failure_count += info[FAILURES]
            self._returns[env_id] = 0.0
        else:
            self._returns[env_id] += reward
        if done:
            info.setdefault("eval_episode_return", float(self._returns[env_id]))
            self._end_episode(env_id)
        return Timestep(obs, reward, done, info)

    def _end_episode(self, env_id: int) -> None:
        self._count_episodes([env_id])
        if not self._parked[env_id]:
            self._reset_one(env_id, {})

    def _check_running(self, env_ids: Sequence[int]) -> None:
        stopped = [env_id for env_id in env_ids if self._parked[env_id]]
        if stopped or len(set(env_ids)) < len(env_ids):
            running = np.flatnonzero(~self._parked).tolist()
            raise PolicyOutputError(
                f"actions for envs {list(env_ids)}, each env once; running are {running}. A DONE "
                "env needs a launch(), one without auto_reset a reset()",
                key="env_id",
                expected=running,
                found=list(env_ids),
            )
