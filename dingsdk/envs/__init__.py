"""Environments: the env manager contract, the managers of the core, and their making."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dingsdk.envs.base import Capabilities as Capabilities
    from dingsdk.envs.base import EnvManager as EnvManager
    from dingsdk.envs.base import StepColumns as StepColumns
    from dingsdk.envs.base import Timestep as Timestep
    from dingsdk.envs.in_process import InProcessEnvManager as InProcessEnvManager
    from dingsdk.envs.make import EnvFn as EnvFn
    from dingsdk.envs.make import create_env_manager as create_env_manager
    from dingsdk.envs.make import make_env_fns as make_env_fns
    from dingsdk.envs.make import seed_envs as seed_envs
    from dingsdk.envs.vector import VectorEnvManager as VectorEnvManager

# Resolved on access: gymnasium takes a good part of a second to import.
_HOMES = {
    "Capabilities": "base",
    "EnvFn": "make",
    "EnvManager": "base",
    "InProcessEnvManager": "in_process",
    "StepColumns": "base",
    "Timestep": "base",
    "VectorEnvManager": "vector",
    "create_env_manager": "make",
    "make_env_fns": "make",
    "seed_envs": "make",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
