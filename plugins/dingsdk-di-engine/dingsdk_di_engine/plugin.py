"""Registers the policy under the type key ``di_engine``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_di_engine.policy import DIEnginePolicy


@hookimpl
def dingsdk_register_policies(registry: Registry) -> None:
    """Register the policy."""
    registry.register("di_engine", DIEnginePolicy)
