"""The comm collector and learner under the type key ``flask_fs``."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.plugins import Registry, hookimpl
from dingsdk.worker.comm import BaseCommCollector, BaseCommLearner
from dingsdk_flask_fs.transport import TYPE_KEY


class FlaskFileSystemCollector(BaseCommCollector):
    """The comm collector under the name and type key that DI-engine's configs use."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


class FlaskFileSystemLearner(BaseCommLearner):
    """The comm learner under the name and type key that DI-engine's configs use."""

    config: ClassVar[dict[str, Any]] = {"type": TYPE_KEY}


@hookimpl
def dingsdk_register_comm_collectors(registry: Registry) -> None:
    """Register the comm collector."""
    registry.register(TYPE_KEY, FlaskFileSystemCollector)


@hookimpl
def dingsdk_register_comm_learners(registry: Registry) -> None:
    """Register the comm learner."""
    registry.register(TYPE_KEY, FlaskFileSystemLearner)
