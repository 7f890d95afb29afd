"""Envs of envpool, which are written in C++, as vector envs and as single envs.

Their env ids begin with ``envpool:``, as ``envpool:Pong-v5``. envpool is imported when an env is
made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from dingsdk.data.pytree import part_of
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError, UnknownEnvError, spelling

PREFIX = "envpool:"
_NOT_INFO = ("env_id", "players")
"""Keys of an info that say nothing about the episode."""


class PooledEnvs(VectorEnv[Any, Any, Any]):
    """Envs of envpool that are stepped together, by threads.

    Args:
        name: envpool's name of the env.
        num_envs: Number of envs.
        num_threads: Threads that step them; 0 for one per core.
        **kwargs: Options of envpool for this env, such as ``frame_skip`` and ``stack_num``.

    Raises:
        UnknownEnvError: envpool has no such env.
        ConfigError: an env of several players.
        TypeError: options that the env does not have.
        ImportError: envpool is not installed.
    """

    def __init__(self, name: str, num_envs: int = 1, num_threads: int = 0, **kwargs: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self._name = name
        self._options = {"num_envs": num_envs, "num_threads": num_threads, **kwargs}
        self._pool: Any = None
        spec = _envpool_spec(name, self._options)
        if spec.config.max_num_players > 1:
            raise ConfigError(
                f"env.env_id: {name} of envpool has {spec.config.max_num_players} players, and "
                "only envs of one player can be used",
                path="env.env_id",
                found=spec.config.max_num_players,
            )
        with _quietly():
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes; a seed makes new envs, each with a stream derived from it."""
        if seed is not None or self._pool is None:
            self.close()
            # By default envpool would use the same streams each time.
            root = np.random.SeedSequence().generate_state(1)[0] if seed is None else seed
            seeds = [derive_seed(int(root), "envpool", index) for index in range(self.num_envs)]
            self._pool = _make_pool(self._name, env_seed=seeds, **self._options)
        obs, info = self._pool.reset()
        return obs, _own_info(info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        return obs, reward, terminated, truncated, _own_info(info)

    def close(self, **kwargs: Any) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class PooledEnv(gym.Env[Any, Any]):
    """One env of envpool; arguments and errors as ``PooledEnvs``."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._envs = PooledEnvs(name, **kwargs)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, _ = self._envs.reset(seed=seed)
        return part_of(obs, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._envs.step(np.asarray(action)[None])
        return part_of(obs, 0), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self._envs.close()


def pooled_spec(name: str) -> EnvSpec:
    """Return an entry for gymnasium's registry for an env of envpool."""
    return EnvSpec(
        id=name,
        entry_point=partial(PooledEnv, name),
        vector_entry_point=partial(PooledEnvs, name),
    )


def _own_info(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in _NOT_INFO}


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence gymnasium's warnings of bounds with more precision than their space's dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _make_pool(name: str, **options: Any) -> Any:
    import envpool

    with _quietly():
        pool = envpool.make_gymnasium(name, **options)
        _ = pool.observation_space, pool.action_space  # made at the first access
    return pool


def _envpool_spec(name: str, options: dict[str, Any]) -> Any:
    import envpool

    known = envpool.list_all_envs()
    if name not in known:
        nearest, hint = spelling(name, known)
        raise UnknownEnvError(
            f"env.env_id: envpool has no env {name!r}{hint} envpool.list_all_envs() names them",
            path="env.env_id",
            env_id=name,
            nearest=nearest,
        )
    return envpool.make_spec(name, **options)
