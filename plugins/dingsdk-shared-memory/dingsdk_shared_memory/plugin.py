"""Registers the transport under the type key ``shared_memory``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_shared_memory.transport import TYPE_KEY, SharedMemoryTransport


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport."""
    registry.register(TYPE_KEY, SharedMemoryTransport)
