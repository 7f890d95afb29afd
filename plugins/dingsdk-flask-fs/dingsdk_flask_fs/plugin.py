"""What the plugin registers under the type key ``flask_fs``."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.plugins import Registry, hookimpl
from dingsdk.worker.comm import TransportCollector, TransportLearner
from dingsdk_flask_fs.transport import TYPE_KEY, FlaskFSTransport


class FlaskFileSystemCollector(TransportCollector):
    """The comm collector of the flask_fs transport."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


class FlaskFileSystemLearner(TransportLearner):
    """The comm learner of the flask_fs transport."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    registry.register(TYPE_KEY, FlaskFSTransport)


@hookimpl
def dingsdk_register_comm_collectors(registry: Registry) -> None:
    registry.register(TYPE_KEY, FlaskFileSystemCollector)


@hookimpl
def dingsdk_register_comm_learners(registry: Registry) -> None:
    registry.register(TYPE_KEY, FlaskFileSystemLearner)
