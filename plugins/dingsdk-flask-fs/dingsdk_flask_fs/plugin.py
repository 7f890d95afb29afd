"""Registers the transport under the type key ``flask_fs``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_flask_fs.transport import TYPE_KEY, FlaskFSTransport


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport."""
    registry.register(TYPE_KEY, FlaskFSTransport)
