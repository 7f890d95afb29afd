"""The env manager ``envpool``: envs written in C++, stepped by threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from dingsdk.config import Whole
from dingsdk.envs.base import EnvManager
from dingsdk.envs.base_vector import BaseVectorEnvManager
from dingsdk.envs.make import EnvFn
from dingsdk.envs.pooled import PREFIX, PooledEnvs
from dingsdk.envs.spaces import ActionChecker, ObservationSchema
from dingsdk.errors import ConfigError


class EnvpoolEnvManager(BaseVectorEnvManager):
    """Type ``envpool``: the threads of envpool (an extra) step all envs in one call.

    ``env.env_id`` is an id of envpool, such as ``envpool:Pong-v5``, or one that gymnasium has as
    well; ``env.kwargs`` are envpool's options. All envs are reset together, an env spends a step
    on its reset after an episode, and one seed gives each env a separate random stream.
    Wrappers, envs of several players and functions that make envs are refused.
    envpool's asynchronous mode is not used.
    """

    class Config(BaseVectorEnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            num_threads: Threads that step the envs; 0 for one per core.
        """

        num_threads: Whole = 0

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Any]) -> None:
        super().__init__(cfg, env_fns)
        first = env_fns[0]
        if not isinstance(first, EnvFn) or any(env_fn != first for env_fn in env_fns):
            raise ConfigError(
                "env_manager.type: envpool makes its own envs, all alike, and takes no functions "
                "that make others; use in_process, vector or subprocess",
                path="env_manager.type",
            )
        if first.wrappers:
            raise ConfigError(
                "env.wrappers: the envs of envpool run in C++ and take none; use its own options "
                "in env.kwargs, or env_manager.type in_process",
                path="env.wrappers",
                found=first.wrappers,
            )
        self._env = first
        self.make_vector_env()  # refuses an unknown env, and options that it does not take

    def make_vector_env(self) -> PooledEnvs:
        name = self._env.env_id.removeprefix(PREFIX)
        return PooledEnvs(name, self.env_num, self.section.num_threads, **self._env.kwargs)

    # The state of the envs is in C++, where it cannot be read.
    _envs_state = EnvManager._envs_state

    @cached_property
    def _spaces(self) -> tuple[ObservationSchema, ActionChecker]:
        # gymnasium's spaces of an env that it has as well may have another dtype.
        envs = self.make_vector_env()
        self._set_players(1)
        return (
            ObservationSchema(envs.single_observation_space),
            ActionChecker(envs.single_action_space),
        )
