"""The part that the plugin registers under the type key ``in_memory``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_in_memory.transport import InMemoryTransport


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport."""
    registry.register("in_memory", InMemoryTransport)
