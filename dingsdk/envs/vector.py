"""The env manager ``vector``: a vector env of the env's own, or the best of the other managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dingsdk.config import Positive
from dingsdk.envs.base import EnvManager
from dingsdk.envs.base_vector import BaseVectorEnvManager
from dingsdk.envs.in_process import InProcessEnvManager
from dingsdk.envs.make import EnvFn
from dingsdk.envs.subprocess import SubprocessEnvManager
from dingsdk.errors import ConfigError


class VectorEnvManager(EnvManager):
    """Type ``vector``: ``VectorEnvManager(cfg, env_fns)`` makes the manager that the mode names.

    ``capabilities`` of that manager says what it guarantees. If a native vector env fails, all its
    envs are rebuilt and all rows of that step are abnormal; in the other modes one env.
    """

    class Config(EnvManager.Config, frozen=True, kw_only=True):
        """Section ``env_manager``.

        Attributes:
            vectorization_mode: ``native`` uses the env's own vector env: it is fast, but all envs
                share one random stream, are reset together, and mostly spend a step on each reset.
                ``sync`` is the manager ``in_process``, ``async`` the manager ``subprocess`` with a
                process for each env; ``auto`` is native if possible, else sync.
            step_timeout: Seconds that a step may take in mode ``async``.
            reset_timeout: Seconds that a reset may take in mode ``async``.
        """

        vectorization_mode: Literal["auto", "native", "sync", "async"] = "auto"
        step_timeout: Positive = 60.0
        reset_timeout: Positive = 60.0

    def __new__(  # type: ignore[misc]
        cls, cfg: Mapping[str, Any], env_fns: Sequence[Any]
    ) -> EnvManager:
        section = cls.read(cfg, "env_manager")
        mode, obstacle = section.vectorization_mode, None
        if mode in ("auto", "native") and isinstance(env_fns, Sequence) and env_fns:
            obstacle = why_not_native(env_fns)
            if obstacle is None:
                return _managed(NativeEnvManager, section, env_fns)
        if obstacle is not None and mode == "native":
            raise ConfigError(
                f"env_manager.vectorization_mode: native vectorization is not available: "
                f"{obstacle}; use auto, sync or async",
                path="env_manager.vectorization_mode",
                expected=["auto", "native", "sync", "async"],
                found=mode,
            )
        if mode == "async":
            return _managed(SubprocessEnvManager, section, env_fns, envs_per_process=1)
        return _managed(InProcessEnvManager, section, env_fns)


class NativeEnvManager(BaseVectorEnvManager):
    """Drives the vector env that an env has of its own."""

    def make_vector_env(self) -> Any:
        env_fn: Any = self._env_fns[0]  # an EnvFn, as why_not_native has found
        return env_fn.make_native(self._env_num)


def _managed(
    manager: type[EnvManager], section: Any, env_fns: Sequence[Any], **more: Any
) -> EnvManager:
    keys = set(manager.Config.__struct_fields__) & set(section.__struct_fields__)
    return manager({**{key: getattr(section, key) for key in keys}, **more}, env_fns)


def why_not_native(env_fns: Sequence[Callable[[], Any]]) -> str | None:
    """Return why envs cannot be made as the env's own vector env; None if they can."""
    first = env_fns[0]
    if not isinstance(first, EnvFn):
        return "the envs are made by functions of their own"
    if first.wrappers:
        return "the envs are wrapped"
    if any(env_fn != first for env_fn in env_fns[1:]):
        return "the envs differ"
    spec = first.spec
    if spec.additional_wrappers:
        return f"{first.env_id} is registered with wrappers"
    if spec.vector_entry_point is None:
        return f"{first.env_id} has no vector env of its own"
    return None
