"""Policies: what acts and learns. Workers see the modes of ``dingsdk.policy.base`` only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.policy.base import Policy

__all__ = ["create_policy", "get_policy_cls"]


def create_policy(
    cfg: Mapping[str, Any],
    enable_field: Sequence[str] | None = None,
    seed: int | None = None,
) -> Policy:
    """Build the policy that ``cfg["type"]`` names.

    Args:
        cfg: The config's ``policy`` section; absent keys take the policy's defaults.
        enable_field: Modes to serve, of ``learn``, ``collect``, ``eval``, ``command``; None
            for all. Modes built together share one set of weights.
        seed: Of the initial weights and of the exploration; None draws from the system.

    Raises:
        UnknownPluginError: nothing provides that type.
        ConfigError: no type, or a value that the policy cannot work with.
    """
    policy: Policy = default_manager().create(
        "policies", cfg, enable_field=enable_field, seed=seed, config_path="policy"
    )
    return policy


def get_policy_cls(cfg: Mapping[str, Any]) -> type[Policy]:
    """Return the class of the policy that ``cfg["type"]`` names; errors as ``create_policy``."""
    cls: type[Policy] = default_manager().class_of("policies", cfg, config_path="policy")
    return cls
