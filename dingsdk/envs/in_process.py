"""An env manager that steps single envs one after the other in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.data.action_mask import open_masks
from dingsdk.envs.base import Capabilities, EnvManager, StepColumns, Timestep, step_columns
from dingsdk.envs.guard import ABNORMAL, EPISODE_INFO, GuardedEnv, close_quietly
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.errors import ConfigError


class InProcessEnvManager(EnvManager):
    """Types ``in_process`` and ``base``: a loop over single envs, with all capabilities except one.

    Each env has its own seed, is reset on its own and can be stepped on its own; only
    ``asynchronous`` is missing. Envs may have any observation space in the dict form; the batched
    form needs columns. For the config keys see EnvManager.
    """

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        self._envs: list[GuardedEnv] = []
        self._obs: list[Any] = [None] * self._env_num

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

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
        timesteps = {}
        for env_id, action in self._checked(actions).items():
            obs, reward, terminated, truncated, info = self._step_one(env_id, action)
            ends = {"terminated": terminated, "truncated": truncated}
            timesteps[env_id] = self._timestep(env_id, obs, reward, info | ends)
        if self._looks_beyond:
            self._look_beyond([each.obs for each in timesteps.values()])
        return timesteps

    def current_obs(self) -> Obs:
        self._check_open()
        return self._spaces[0].stack(self._obs)

    def step_batch(
        self, actions: NDArray[Any], env_ids: NDArray[np.int64] | None = None
    ) -> StepColumns:
        self._check_open()
        schema, checker = self._spaces
        ids = list(range(self._env_num)) if env_ids is None else env_ids.tolist()
        if env_ids is not None:
            self._check_running(ids)
        count = len(ids)
        actions = checker.batch(actions, count)
        schema.require_columns()
        reward = np.zeros((count, *self._reward_shape), dtype=np.float32)
        terminated, truncated, abnormal, valid = np.zeros((4, count), dtype=np.bool_)
        last_obs = [self._obs[env_id] for env_id in ids]
        episode_info: dict[int, Mapping[str, Any]] = {}
        # Plain booleans: for few envs any() of arrays takes longer than a step.
        is_parked, is_any_ended = self._parked.tolist(), False
        for row, env_id in enumerate(ids):
            if is_parked[env_id]:
                continue
            last_obs[row], reward[row], has_terminated, was_truncated, info = self._step_one(
                env_id, actions[row]
            )
            if info.get(ABNORMAL):
                abnormal[row] = True
                continue
            valid[row] = True
            if has_terminated or was_truncated:
                terminated[row], truncated[row], is_any_ended = has_terminated, was_truncated, True
                if info.get(EPISODE_INFO):
                    episode_info[row] = info[EPISODE_INFO]
        final_obs = schema.stack(last_obs)
        if self._looks_beyond:
            self._look_beyond([final_obs])
        obs = schema.stack([self._obs[env_id] for env_id in ids]) if is_any_ended else final_obs
        return step_columns(
            obs, final_obs, reward, terminated, truncated, valid, abnormal, episode_info
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
            self._envs.append(GuardedEnv(env_fn, env_id, self.section))
        self._spaces = (
            ObservationSchema(self._envs[0].observation_space),
            ActionChecker(self._envs[0].action_space),
        )
        self._set_players(self._envs[0].player_num)

    def _discard(self) -> None:
        envs, self._envs = self._envs, []
        close_quietly(*reversed(envs))

    _saved = (*EnvManager._saved, "_obs")

    def _envs_state(self) -> Any:
        return [env.get_state() for env in self._envs]

    def _set_envs_state(self, state: Any) -> None:
        for env, each in zip(self._envs, state, strict=True):
            env.set_state(each)

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        self._check_open()
        return self._envs[env_id].call(name, *args)

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        for env_id, seed in zip(env_ids, self._new_seeds(env_ids), strict=True):
            self._envs[env_id].keep_seed = not self._dynamic_seed
            self._reset_one(env_id, {"seed": seed, **(kwargs.get(env_id) or {})})
            self._returns[env_id], self._parked[env_id] = 0.0, False

    def _reset_one(self, env_id: int, kwargs: Mapping[str, Any]) -> None:
        env = self._envs[env_id]
        self._obs[env_id], _ = env.reset(**kwargs)
        self._failure_count += env.take_failures()

    def _step_one(self, env_id: int, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step an env, reset it if its episode ends, and return the result of the step."""
        env = self._envs[env_id]
        step = obs, _, terminated, truncated, _ = env.step(action)
        self._obs[env_id] = obs
        self._failure_count += env.take_failures()
        if terminated or truncated:
            self._count_episodes([env_id])
            if not self._parked[env_id]:
                self._reset_one(env_id, {})
            else:
                self._obs[env_id] = open_masks(obs)
        return step
