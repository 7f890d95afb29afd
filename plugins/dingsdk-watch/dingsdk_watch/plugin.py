"""Registers the command ``dingsdk watch``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_watch.command import watch


@hookimpl
def dingsdk_register_commands(registry: Registry) -> None:
    """Register the command."""
    registry.register("watch", watch)
