"""An env manager that steps single envs in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Whole
from dingsdk.envs.base import EnvManager
from dingsdk.envs.guard import CLOSE_S, GuardedEnv, Played, close_quietly
from dingsdk.envs.last_info import ABNORMAL, EPISODE_INFO
from dingsdk.envs.spaces import ActionChecker, Obs, ObservationSchema
from dingsdk.envs.steps import StepColumns, Timestep, step_columns
from dingsdk.errors import ConfigError


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
    def ready_obs(self) -> dict[int, Any]:
        self._check_open()
        return {env_id: self._obs[env_id] for env_id in self._ready()}

    @property
    def ready_imgs(self) -> dict[int, Any]:
        """``{env_id: image [height, width, 3]}`` of the envs that wait for an action.

        Raises:
            ConfigError: the envs were not made with ``env.kwargs.render_mode: rgb_array``.
        """
        ready, mode = self.ready_obs, self._envs[0].render_mode
        if mode != "rgb_array":
            path = "env.kwargs.render_mode"
            raise ConfigError(
                f"{path} is {mode!r}, so the envs give no images; set it to rgb_array",
                path=path,
                expected="rgb_array",
                found=mode,
            )
        return {env_id: self._envs[env_id].render() for env_id in ready}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        checked = self._checked(actions)
        timesteps = {
            env_id: self._episodes.timestep(
                env_id, obs, reward, {**info, "terminated": terminated, "truncated": truncated}
            )
            for env_id, (obs, reward, terminated, truncated, info, *_) in zip(
                checked, self._play_all(checked), strict=True
            )
        }
        if self._bounds.is_on:
            self._bounds.look(self._spaces[0], [each.obs for each in timesteps.values()])
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
        is_parked = self._episodes.parked.tolist()
        pairs = zip(ids, actions, strict=True)
        stepped = iter(self._play_all({i: action for i, action in pairs if not is_parked[i]}))
        played = [self._idle(i) if is_parked[i] else next(stepped) for i in ids]
        last_obs, rewards, terminations, truncations, infos, following, _ = (
            list(zip(*played, strict=True)) or [()] * 7
        )
        reward = np.array(rewards, dtype=np.float32).reshape(count, *self._episodes.reward_shape)
        terminated, truncated = np.array((terminations, truncations), dtype=np.bool_)
        valid = np.array([not is_parked[i] for i in ids], dtype=np.bool_)
        abnormal = np.zeros(count, dtype=np.bool_)
        episode_info: dict[int, Mapping[str, Any]] = {}
        for row, info in enumerate(infos):
            if not info:
                continue
            if info.get(ABNORMAL):
                abnormal[row], valid[row] = True, False
            elif (terminations[row] or truncations[row]) and info.get(EPISODE_INFO):
                episode_info[row] = info[EPISODE_INFO]
        obs = final_obs = schema.stack(last_obs)
        if True in terminations or True in truncations:
            obs = schema.stack(following)
        if self._bounds.is_on:
            self._bounds.look(schema, [final_obs])
        return step_columns(
            obs, final_obs, reward, terminated, truncated, valid, abnormal, episode_info
        )

    def _idle(self, env_id: int) -> Played:
        """Return the place of an env that takes no action in the results of a step."""
        obs = self._obs[env_id]
        return obs, np.zeros(self._episodes.reward_shape, np.float32), False, False, {}, obs, 0

    def _reset_envs(self, env_ids: Sequence[int], kwargs: Mapping[int, Any]) -> None:
        seeds = zip(env_ids, self._seeds.take(env_ids), strict=True)
        given = [{"seed": seed, **(kwargs.get(i) or {})} for i, seed in seeds]
        envs = [self._envs[env_id] for env_id in env_ids]
        restarted = self._map(GuardedEnv.restart, envs, repeat(not self._seeds.is_dynamic), given)
        for env_id, (obs, failures) in zip(env_ids, restarted, strict=True):
            self._obs[env_id] = obs
            self._failure_count += failures
        self._episodes.begin(env_ids)

    def _play_all(self, actions: Mapping[int, Any]) -> Sequence[Played]:
        """Step envs by ``GuardedEnv.play``; return the results in the order of ``actions``."""
        goes_on: Iterable[bool] = repeat(True)
        if self._episodes.may_park:
            goes_on = self._episodes.goes_on(list(actions)).tolist()
        envs = [self._envs[env_id] for env_id in actions]
        played = list(
            self._map(GuardedEnv.play, envs, actions.values(), goes_on, meanwhile=self.meanwhile)
        )
        for env_id, (_, _, terminated, truncated, _, self._obs[env_id], failures) in zip(
            actions, played, strict=True
        ):
            self._failure_count += failures
            if terminated or truncated:
                self._episodes.end([env_id])
        return played

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
        self._episodes.set_players(self._envs[0].player_num)
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
        errors: dict[int, BaseException] = {}
        has_begun, is_over = threading.Lock(), threading.Lock()
        has_begun.acquire()
        is_over.acquire()
        # The call that takes the last number ends the wait; no two calls get the same number.
        numbers = iter(range(len(calls), 0, -1))

        def run(place: int, args: tuple[Any, ...]) -> None:
            if place == len(calls) - 1:
                has_begun.release()
            try:
                results[place] = function(*args)
            except BaseException as error:
                errors[place] = error
            if next(numbers) == 1:
                is_over.release()

        for each in enumerate(calls):
            self._calls.put(partial(run, *each))
        if meanwhile is not None:
            # Otherwise Python's lock, which this thread has, would delay the calls by up to 5 ms.
            has_begun.acquire()
            meanwhile()
        is_over.acquire()
        if errors:
            raise errors[min(errors)]
        return results

    def close(self) -> None:
        """End the threads; one that is in a call for too long is abandoned."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
