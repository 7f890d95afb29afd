"""Factories, which build the part that the ``type`` of a config section names.

Each imports ``import_names`` first, then builds the class registered under ``type``. An
unknown type raises an ``UnknownPluginError`` that lists the known types. See
``dingsdk.plugins.PluginManager.create``.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from dingsdk.config import to_easydict
from dingsdk.config.aliases import rename_aliases
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.worker import (
        BaseCommCollector,
        BaseCommLearner,
        BaseLearner,
        BaseParallelCollector,
        BaseParallelCommander,
        IBuffer,
        ISerialCollector,
        ISerialEvaluator,
    )

Cfg = Mapping[str, Any]


def create_buffer(cfg: Cfg, *args: Any, **kwargs: Any) -> IBuffer:
    """Build the replay buffer that ``cfg["type"]`` names."""
    buffer: IBuffer = default_manager().create("buffers", cfg, *args, **kwargs)
    return buffer


def get_buffer_cls(cfg: Cfg) -> type[IBuffer]:
    """Return the class of the replay buffer that ``cfg["type"]`` names."""
    found: type[IBuffer] = default_manager().class_of("buffers", cfg)
    return found


def create_comm_collector(cfg: Cfg, **kwargs: Any) -> BaseCommCollector:
    """Build the comm collector that ``cfg["type"]`` names."""
    collector: BaseCommCollector = default_manager().create("comm_collectors", cfg, **kwargs)
    return collector


def create_comm_learner(cfg: Cfg, **kwargs: Any) -> BaseCommLearner:
    """Build the comm learner that ``cfg["type"]`` names."""
    learner: BaseCommLearner = default_manager().create("comm_learners", cfg, **kwargs)
    return learner


def create_learner(cfg: Cfg, **kwargs: Any) -> BaseLearner:
    """Build the learner that ``cfg["type"]`` names."""
    learner: BaseLearner = default_manager().create("learners", cfg, **kwargs)
    return learner


def create_parallel_collector(cfg: Cfg, **kwargs: Any) -> BaseParallelCollector:
    """Build the parallel collector that ``cfg["type"]`` names."""
    collector: BaseParallelCollector = default_manager().create(
        "parallel_collectors", cfg, **kwargs
    )
    return collector


def get_parallel_collector_cls(cfg: Cfg) -> type[BaseParallelCollector]:
    """Return the class of the parallel collector that ``cfg["type"]`` names."""
    found: type[BaseParallelCollector] = default_manager().class_of("parallel_collectors", cfg)
    return found


def get_parallel_commander_cls(cfg: Cfg) -> type[BaseParallelCommander]:
    """Return the class of the commander that ``cfg["type"]`` names."""
    found: type[BaseParallelCommander] = default_manager().class_of("commanders", cfg)
    return found


def create_serial_collector(cfg: Cfg, **kwargs: Any) -> ISerialCollector:
    """Build the serial collector that ``cfg["type"]`` names."""
    collector: ISerialCollector = default_manager().create("collectors", cfg, **kwargs)
    return collector


def get_serial_collector_cls(cfg: Cfg) -> type[ISerialCollector]:
    """Return the class of the serial collector that ``cfg["type"]`` names."""
    found: type[ISerialCollector] = default_manager().class_of("collectors", cfg)
    return found


def create_serial_evaluator(cfg: MutableMapping[str, Any], **kwargs: Any) -> ISerialEvaluator:
    """Build a serial evaluator; a missing ``type`` is set to ``interaction`` in ``cfg``."""
    cfg.setdefault("type", "interaction")
    evaluator: ISerialEvaluator = default_manager().create("evaluators", cfg, **kwargs)
    return evaluator


def get_serial_evaluator_cls(cfg: Cfg) -> type[ISerialEvaluator]:
    """Return the class of the serial evaluator that ``cfg["type"]`` names."""
    found: type[ISerialEvaluator] = default_manager().class_of("evaluators", cfg)
    return found


def create_parallel_commander(cfg: Cfg, **kwargs: Any) -> BaseParallelCommander:
    """Build the commander that ``policy.other.commander`` of the *main* config names."""
    path = "policy.other.commander"
    main = to_easydict(cfg)
    main.policy.other.commander = rename_aliases(main.policy.other.commander, path)
    commander_cls = default_manager().class_of("commanders", main.policy.other.commander, path)
    commander: BaseParallelCommander = commander_cls(main, **kwargs)
    return commander
