"""What the plugin registers under the type key ``unix_socket``."""

from __future__ import annotations

from dingsdk.plugins import Registry, hookimpl
from dingsdk.worker.comm import TransportCollector, TransportLearner
from dingsdk_example_transport.transport import UnixSocketTransport

TYPE_KEY = "unix_socket"


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    registry.register(TYPE_KEY, UnixSocketTransport)


@hookimpl
def dingsdk_register_comm_collectors(registry: Registry) -> None:
    registry.register(TYPE_KEY, TransportCollector)


@hookimpl
def dingsdk_register_comm_learners(registry: Registry) -> None:
    registry.register(TYPE_KEY, TransportLearner)
