"""Every worker class and function of the contract, imported when first named.

Names that a plugin owns are found through its distribution's metadata; without the plugin
they raise an ImportError that says how to get it.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "collector.base": ("ISerialCollector",),
    "collector.parallel_base": ("BaseParallelCollector",),
    "collector.sample": ("SampleSerialCollector",),
    "collector.rows": ("CachePool", "TrajBuffer", "to_tensor_transitions"),
    "collector.zergling": ("ZerglingParallelCollector",),
    "comm": ("BaseCommCollector", "BaseCommLearner", "Master", "Slave", "Task", "TaskStatus"),
    "comm.naive": ("NaiveCollector", "NaiveLearner"),
    "commander.base": ("BaseParallelCommander",),
    "commander.naive": ("NaiveCommander",),
    "commander.serial": ("BaseSerialCommander",),
    "commander.solo": ("SoloCommander",),
    "coordinator": ("Coordinator", "TaskState"),
    "evaluator.base": ("ISerialEvaluator",),
    "evaluator.interaction": ("InteractionSerialEvaluator",),
    "evaluator.monitor": ("VectorEvalMonitor",),
    "factory": (
        "create_buffer",
        "create_comm_collector",
        "create_comm_learner",
        "create_learner",
        "create_parallel_collector",
        "create_parallel_commander",
        "create_serial_collector",
        "create_serial_evaluator",
        "get_buffer_cls",
        "get_parallel_collector_cls",
        "get_parallel_commander_cls",
        "get_serial_collector_cls",
    ),
    "learner.base": ("BaseLearner",),
    "learner.hook": (
        "Hook",
        "LearnerHook",
        "add_learner_hook",
        "build_learner_hook_by_cfg",
        "merge_hooks",
        "register_learner_hook",
    ),
    "replay_buffer.advanced": ("AdvancedReplayBuffer",),
    "replay_buffer.base": ("IBuffer",),
    "replay_buffer.naive": ("NaiveReplayBuffer",),
    "replay_buffer.elastic": ("ElasticReplayBuffer",),
    "replay_buffer.episode": ("EpisodeReplayBuffer",),
    "replay_buffer.sequence": ("SequenceReplayBuffer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from dingsdk.plugins import resolve_plugin_name

        return resolve_plugin_name(name)
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
