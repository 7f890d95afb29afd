"""An env manager that steps single envs in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from queue import SimpleQueue
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Whole
from dingsdk.data.action_mask import open_masks
from dingsdk.envs.base import Capabilities, EnvManager, StepColumns, Timestep, step_columns
from dingsdk.envs.guard import CLOSE_S, GuardedEnv, close_quietly
from dingsdk.envs.last_info import ABNORMAL, EPISODE_INFO
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.errors import ConfigError

Played = tuple[Any, Any, bool, bool, dict[str, Any], Any, int]
"""A step of an env: obs, reward, terminated, truncated, info, the obs for the next action, and how
often the env failed."""


def play(env: GuardedEnv, action: Any, goes_on: bool) -> Played:
    """Step an env; reset it if its episode ends and ``goes_on`` is True."""
    obs, reward, terminated, truncated, info = env.step(action)
    following = obs
    if terminated or truncated:
        following = env.reset()[0] if goes_on else open_masks(obs)
    return obs, reward, terminated, truncated, info, following, env.take_failures()


def restart(env: GuardedEnv, keep_seed: bool, kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """Reset an env; return the observation, and how often the env failed."""
    env.keep_seed = keep_seed
    obs, _ = env.reset(**kwargs)
    return obs, env.take_failures()


class InProcessEnvManager(EnvManager):
    """Types ``in_process`` and ``base``: envs in this process, with all capabilities except one.

    Only ``asynchronous`` is missing. Each env has its own seed, is reset on its own and can be
    stepped on its own. Envs may have any observation space in the dict form; the batched form needs
    columns. The envs are stepped one after the other, or side by side by
    ``threads``, with the same results.
    """

    class Config(EnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            threads: Number of threads that step and reset envs side by side; 0 for none. For envs
                that release Python's lock while they wait, as for a simulator behind a socket. Any
                of the threads may step an env, and all state of an env must be in its object.
        """

        threads: Whole = 0

    _saved = (*EnvManager._saved, "_obs")

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        self._envs: list[GuardedEnv] = []
        self._obs: list[Any] = [None] * self._env_num
        self._threads: _Threads | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    @property
    def ready_obs(self) -> dict[int, Any]:
        self._check_open()
        running = np.flatnonzero(self._running()).tolist()
        return {env_id: self._obs[env_id] for env_id in running}

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """``{env_id: image [height, width, 3]}`` of the envs that wait for an action.

        Raises:
            ConfigError: the envs were not made with ``env.kwargs.render_mode: rgb_array``, or
                a package that they render with is missing.
        """
        return {env_id: self._image(env_id) for env_id in self.ready_obs}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        checked, timesteps = self._checked(actions), dict[int, Timestep]()
        for env_id, each in zip(checked, self._play_all(checked), strict=True):
            self._note(env_id, each)
            obs, reward, terminated, truncated, info, *_ = each
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
        rows = [row for row, env_id in enumerate(ids) if not is_parked[env_id]]
        played = self._play_all({ids[row]: actions[row] for row in rows})
        for row, each in zip(rows, played, strict=True):
            self._note(ids[row], each)
            last_obs[row], reward[row], has_terminated, was_truncated, info, *_ = each
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

    def _note(self, env_id: int, played: Played) -> None:
        """Count the episode and the failures of a step, and keep the obs for the next action."""
        _, _, terminated, truncated, _, self._obs[env_id], failures = played
        self._failure_count += failures
        if terminated or truncated:
            self._count_episodes([env_id])

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        seeds = zip(env_ids, self._new_seeds(env_ids), strict=True)
        given = [{"seed": seed, **(kwargs.get(i) or {})} for i, seed in seeds]
        envs = [self._envs[env_id] for env_id in env_ids]
        restarted = self._map(restart, envs, repeat(not self._dynamic_seed), given)
        for env_id, (obs, failures) in zip(env_ids, restarted, strict=True):
            self._obs[env_id] = obs
            self._failure_count += failures
            self._returns[env_id], self._parked[env_id] = 0.0, False

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

    def _play_all(self, actions: Mapping[int, Any]) -> Iterable[Played]:
        """Step envs by ``play``; return the results in the order of ``actions``."""
        # Whether an env begins another episode after its current one.
        goes_on = ((self._episodes + 1 < self.episode_num) & self.section.auto_reset).tolist()
        envs = [self._envs[env_id] for env_id in actions]
        columns = (envs, actions.values(), [goes_on[env_id] for env_id in actions])
        return self._map(play, *columns, meanwhile=self.meanwhile)

    def _map(
        self, function: Callable[..., Any], *columns: Iterable[Any], meanwhile: Any = None
    ) -> Iterable[Any]:
        if self._threads is None:
            return map(function, *columns)
        return self._threads.map(function, *columns, meanwhile=meanwhile)

    def _open(self) -> None:
        for env_id, env_fn in enumerate(self._env_fns):
            self._envs.append(GuardedEnv(env_fn, env_id, self.section))
        self._spaces = (
            ObservationSchema(self._envs[0].observation_space),
            ActionChecker(self._envs[0].action_space),
        )
        self._set_players(self._envs[0].player_num)
        if self.section.threads:
            self._threads = _Threads(min(self.section.threads, self._env_num))

    def _discard(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()
        envs, self._envs = self._envs, []
        close_quietly(*reversed(envs))

    def _envs_state(self) -> Any:
        return [env.get_state() for env in self._envs]

    def _set_envs_state(self, state: Any) -> None:
        for env, each in zip(self._envs, state, strict=True):
            env.set_state(each)

    def _call(self, env_id: int, name: str, *args: Any) -> Any:
        self._check_open()
        return self._envs[env_id].call(name, *args)


class _Threads:
    """Threads that call a function side by side.

    Args:
        count: Number of threads.
    """

    # concurrent.futures would wake this thread for each result, and Python would wait at its exit
    # for a thread that hangs.
    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def map(
        self, function: Callable[..., Any], *columns: Iterable[Any], meanwhile: Any = None
    ) -> Iterable[Any]:
        """Return the results in order, after all calls have ended; raise the first error.

        ``meanwhile`` is called in this thread when all calls have begun, if it is not None.
        """
        calls = list(zip(*columns, strict=False))
        if not calls:
            return ()
        results: list[Any] = [None] * len(calls)
        has_begun, is_over = threading.Lock(), threading.Lock()
        has_begun.acquire()
        is_over.acquire()
        # The call that takes the last number ends the wait; no two calls get the same number.
        numbers = iter(range(len(calls), 0, -1))
        for place, args in enumerate(calls):
            self._calls.put((function, args, results, place, numbers, has_begun, is_over))
        if meanwhile is not None:
            # Otherwise Python's lock, which this thread has, would delay the calls by up to 5 ms.
            has_begun.acquire()
            meanwhile()
        is_over.acquire()
        return map(_result, results)

    def close(self) -> None:
        """End the threads; one that is in a call for too long is abandoned."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            function, args, results, place, numbers, has_begun, is_over = call
            if place == len(results) - 1:
                has_begun.release()
            try:
                results[place] = (function(*args), None)
            except BaseException as error:
                results[place] = (None, error)
            if next(numbers) == 1:
                is_over.release()


def _result(found: tuple[Any, BaseException | None]) -> Any:
    value, error = found
    if error is not None:
        raise error
    return value
