"""What the plugin registers under the type key ``in_memory``."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.plugins import Registry, hookimpl
from dingsdk.worker.comm import TransportCollector, TransportLearner
from dingsdk_in_memory.transport import InMemoryTransport

TYPE_KEY = "in_memory"


class InMemoryCollector(TransportCollector):
    """The comm collector of the in_memory transport."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


class InMemoryLearner(TransportLearner):
    """The comm learner of the in_memory transport."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    registry.register(TYPE_KEY, InMemoryTransport)


@hookimpl
def dingsdk_register_comm_collectors(registry: Registry) -> None:
    registry.register(TYPE_KEY, InMemoryCollector)


@hookimpl
def dingsdk_register_comm_learners(registry: Registry) -> None:
    registry.register(TYPE_KEY, InMemoryLearner)
