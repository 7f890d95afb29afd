"""The base class of each kind of part, and checks that a part implements it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from dingsdk.errors import PluginLoadError, listing

BASES: Mapping[str, str] = {
    "transports": "dingsdk.worker.comm:Transport",
    "buffers": "dingsdk.worker:IBuffer",
    "storages": "dingsdk.worker.replay_buffer:Storage",
    "samplers": "dingsdk.worker.replay_buffer:Sampler",
    "removers": "dingsdk.worker.replay_buffer:Remover",
    "limiters": "dingsdk.worker.replay_buffer:Limiter",
    "collectors": "dingsdk.worker:ISerialCollector",
    "parallel_collectors": "dingsdk.worker:BaseParallelCollector",
    "comm_collectors": "dingsdk.worker:BaseCommCollector",
    "comm_learners": "dingsdk.worker:BaseCommLearner",
    "evaluators": "dingsdk.worker:ISerialEvaluator",
    "learners": "dingsdk.worker:BaseLearner",
    "learner_hooks": "dingsdk.worker:LearnerHook",
    "commanders": "dingsdk.worker:BaseParallelCommander",
    "serial_commanders": "dingsdk.worker:BaseSerialCommander",
    "leagues": "dingsdk.worker:OneVsOneLeague",
    "env_managers": "dingsdk.envs:EnvManager",
    "roles": "dingsdk.worker.coordinator:Role",
}
"""Kind -> ``module:name`` of its base; policies, wrappers and commands need none."""

_CALLED = {"serial_commanders": {"step"}}
"""Methods that are not abstract in the base, but that a class without the base must have."""
_PARTS = ("storages", "samplers", "removers", "limiters")


def missing_methods(kind: str, target: type, base: type) -> list[str]:
    """Return the names of the methods that a class lacks to be used as a part of a kind."""
    needed = getattr(base, "__abstractmethods__", frozenset()) | _CALLED.get(kind, set())
    # Looked up in vars(), because `hasattr(cls, "__call__")` finds the one of the metaclass.
    names = {name for each in target.__mro__ for name in vars(each)}
    return sorted(set(getattr(target, "__abstractmethods__", ())) | (needed - names))


def check_interface(kind: str, type_key: str, target: Any, path: str) -> None:
    """Check that a part is a class that can be used as a part of its kind.

    Parts of buffers must extend the base class of their kind. Other classes only need its methods.
    Functions that make parts are not checked.

    Raises:
        PluginLoadError: methods, or the base, are missing; facts ``plugin``, ``kind``, ``missing``.
    """
    if kind not in BASES or not inspect.isclass(target):
        return
    name = f"{target.__module__}.{target.__qualname__}"
    if name.startswith("dingsdk."):
        return
    base = resolve_name(BASES[kind])
    missing = missing_methods(kind, target, base)
    # A buffer also calls methods of its parts that only the base implements.
    needs_base = kind in _PARTS and not issubclass(target, base)
    if missing or needs_base:
        what = f"lacks {listing(missing)}" if missing else "is no subclass"
        raise PluginLoadError(
            f"{path}.type: {type_key!r} is {name}, which {what}; the {kind} "
            f"extend {BASES[kind].replace(':', '.')}",
            plugin=target.__module__,
            kind=kind,
            missing=missing,
        )
