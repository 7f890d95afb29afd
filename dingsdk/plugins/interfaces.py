"""The base class of each kind of parts, and what a part lacks of it."""

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
"""Methods that a base class has, and a class without it needs."""
_PARTS = ("storages", "samplers", "removers", "limiters")


def missing_methods(kind: str, target: type, base: type) -> list[str]:
    """Return the methods without which a class cannot be used as one of a kind, by its base."""
    needed = getattr(base, "__abstractmethods__", frozenset()) | _CALLED.get(kind, set())
    # Looked up in the classes: `__call__` of a class is that of its metaclass.
    names = {name for each in target.__mro__ for name in vars(each)}
    return sorted(set(getattr(target, "__abstractmethods__", ())) | (needed - names))


def check_interface(kind: str, type_key: str, target: Any, path: str) -> None:
    """Check that a part is a class that can be used as one of its kind.

    But for the parts of buffers, a class with all the methods may do without the base. Functions
    that make parts are taken as they are.

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
    # The buffer calls more of its parts than what they must write themselves.
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
