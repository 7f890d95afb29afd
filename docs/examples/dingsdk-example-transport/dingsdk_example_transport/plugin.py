"""Registers the transport under the type key ``unix_socket``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_example_transport.transport import UnixSocketTransport

TYPE_KEY = "unix_socket"


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport."""
    registry.register(TYPE_KEY, UnixSocketTransport)
