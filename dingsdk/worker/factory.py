"""The factories: a config section with a ``type`` in, the part it names out.

Each imports ``import_names`` first, then builds what is registered under ``type``; an
unknown type is an ``UnknownPluginError`` that lists the known ones. See
``dingsdk.plugins.PluginManager.create``.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from dingsdk.config import to_easydict
from dingsdk.plugins import default_manager

Cfg = Mapping[str, Any]


def create_serial_collector(cfg: Cfg, **kwargs: Any) -> Any:
    return default_manager().create("collectors", cfg, **kwargs)


def get_serial_collector_cls(cfg: Cfg) -> Any:
    return default_manager().class_of("collectors", cfg)


def create_serial_evaluator(cfg: MutableMapping[str, Any], **kwargs: Any) -> Any:
    """Build a serial evaluator; a missing ``type`` is set to ``interaction`` in ``cfg``."""
    cfg.setdefault("type", "interaction")
    return default_manager().create("evaluators", cfg, **kwargs)


def create_parallel_collector(cfg: Cfg) -> Any:
    return default_manager().create("parallel_collectors", cfg)


def get_parallel_collector_cls(cfg: Cfg) -> Any:
    return default_manager().class_of("parallel_collectors", cfg)


def create_comm_collector(cfg: Cfg, **kwargs: Any) -> Any:
    return default_manager().create("comm_collectors", cfg, **kwargs)


def create_comm_learner(cfg: Cfg, **kwargs: Any) -> Any:
    return default_manager().create("comm_learners", cfg, **kwargs)


def create_learner(cfg: Cfg, **kwargs: Any) -> Any:
    return default_manager().create("learners", cfg, **kwargs)


def create_buffer(cfg: Cfg, *args: Any, **kwargs: Any) -> Any:
    return default_manager().create("buffers", cfg, *args, **kwargs)


def get_buffer_cls(cfg: Cfg) -> Any:
    return default_manager().class_of("buffers", cfg)


def create_parallel_commander(cfg: Cfg, **kwargs: Any) -> Any:
    """Build the commander that ``policy.other.commander`` of the *main* config names."""
    section = cfg["policy"]["other"]["commander"]
    commander_cls = default_manager().class_of("commanders", section, "policy.other.commander")
    return commander_cls(to_easydict(cfg), **kwargs)


def get_parallel_commander_cls(cfg: Cfg) -> Any:
    return default_manager().class_of("commanders", cfg)
