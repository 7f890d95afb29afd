"""Registers the policy under the type key ``di_engine``; converts configs of DI-engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.plugins import Registry, hookimpl

# This module is loaded in every process, and the modules that it needs import torch and gymnasium.


@hookimpl
def dingsdk_register_policies(registry: Registry) -> None:
    """Register the policy."""
    place = "dingsdk_di_engine.policy:DIEnginePolicy"
    registry.declare("di_engine", place, owner="dingsdk-rl-di-engine")


@hookimpl
def dingsdk_convert_config(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a config with ``main_config`` and ``create_config``."""
    names = {str(key).removesuffix("_config") for key in config}
    if not {"main", "create"} & names:
        return None
    from dingsdk_di_engine.config import convert

    return convert(config)
