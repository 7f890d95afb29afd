"""Builds seeded env managers from the compiled config."""

from __future__ import annotations

from typing import Any

from dingsdk.data.seeding import derive_seed
from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.envs.base import EnvManager


def make_env_manager(cfg: Any, role: str, count: int) -> EnvManager:
    """Build a manager of ``count`` envs, not launched yet.

    Args:
        cfg: The compiled config.
        role: Branch of the seed tree: every env gets a seed of its own below it, or the
            whole manager one where its envs share a random stream.
        count: How many envs, >= 1.
    """
    manager = create_env_manager(cfg.env_manager, make_env_fns(cfg.env, count))
    if manager.capabilities.per_env_seed:
        manager.seed([derive_seed(cfg.seed, role, "env", index) for index in range(count)])
    else:
        manager.seed(derive_seed(cfg.seed, role, "env"))
    return manager
