"""The env manager ``envpool``: envs written in C++, stepped by threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dingsdk.config import Whole
from dingsdk.envs.base import EnvManager
from dingsdk.envs.base_vector import BaseVectorEnvManager
from dingsdk.envs.make import EnvFn
from dingsdk.envs.pooled import PREFIX
from dingsdk.envs.vector import why_not_native
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

    def __init__(self, cfg: Mapping[str, Any], env_fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__(cfg, env_fns)
        self._env_fns = [_pooled(env_fn, self.section.num_threads) for env_fn in env_fns]
        if why := why_not_native(self._env_fns):
            raise ConfigError(
                f"env_manager.type: envpool makes its own envs, but {why}; use envpool's options "
                "in env.kwargs, or env_manager.type in_process, vector or subprocess",
                path="env_manager.type",
            )
        _ = self._spaces  # refuses an unknown env, and options that the env does not have

    def make_vector_env(self) -> Any:
        env_fn: Any = self._env_fns[0]
        return env_fn.make_native(self._env_num)

    # The state of the envs is in C++, where it cannot be read.
    _envs_state = EnvManager._envs_state


def _pooled(env_fn: Callable[[], Any], threads: int) -> Callable[[], Any]:
    """Return an ``EnvFn`` of the same env in envpool; other functions are returned as they are."""
    if not isinstance(env_fn, EnvFn):
        return env_fn
    pooled = copy.copy(env_fn)
    pooled.env_id = PREFIX + env_fn.env_id.removeprefix(PREFIX)
    pooled.kwargs = {"num_threads": threads, **env_fn.kwargs}
    return pooled
