"""Registers the transport under the type key ``ray``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk_ray.transport import RayTransport


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport."""
    registry.register("ray", RayTransport)
