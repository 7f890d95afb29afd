"""Builds seeded env managers from the compiled config."""

from __future__ import annotations

from typing import Any

from dingsdk.envs import create_env_manager, make_env_fns, seed_envs
from dingsdk.envs.base import EnvManager


def make_env_manager(cfg: Any, role: str, count: int) -> EnvManager:
    """Build a manager of ``count`` envs, not launched yet.

    Args:
        cfg: The compiled config.
        role: Branch of the seed tree, see ``seed_envs``.
        count: How many envs, >= 1.
    """
    manager = create_env_manager(cfg.env_manager, make_env_fns(cfg.env, count))
    seed_envs(manager, cfg.seed, role)
    return manager
