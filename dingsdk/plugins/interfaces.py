"""The base classes of the kinds, and checks that a part can be used as one of its kind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from dingsdk.errors import PluginLoadError, listing
from dingsdk.plugins.kinds import OBSERVERS

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
    "datasets": "dingsdk.worker:DatasetFormat",
    "env_managers": "dingsdk.envs:EnvManager",
    "roles": "dingsdk.worker.coordinator:Role",
}
"""Kind -> ``module:name`` of the base class of its parts; the other kinds need none."""

_CALLED: Mapping[str, frozenset[str]] = {
    "learners": frozenset(
        ("call_hook", "close", "register_hook", "save_checkpoint", "start", "train")
    ),
    "policies": frozenset(("collect_mode", "eval_mode", "learn_mode")),
    "serial_commanders": frozenset({"step"}),
}
"""Members that are not abstract in the base, but that a class without the base must have."""
_PARTS = ("storages", "samplers", "removers", "limiters")


def _needed(kind: str) -> frozenset[str]:
    own: frozenset[str] = getattr(_base(kind), "__abstractmethods__", frozenset())
    return own | _CALLED.get(kind, frozenset())


def _base(kind: str) -> type:
    base: type = resolve_name(BASES[kind]) if kind in BASES else object
    return base


def missing_members(kind: str, part: object) -> list[str]:
    """Return the names of the public methods that an object lacks to be a part of a kind."""
    own = getattr(part, "__dict__", {})
    return [n for n in missing_methods(kind, type(part)) if n[0] != "_" and n not in own]


def missing_methods(kind: str, target: type) -> list[str]:
    """Return the names of the methods that a class lacks to be used as a part of a kind.

    A class with ``__getattr__``, such as a wrapper, may have any method.
    """
    # Looked up in vars(), because `hasattr(cls, "__call__")` finds the one of the metaclass.
    names = {name for each in target.__mro__ for name in vars(each)}
    needed = _needed(kind) if "__getattr__" not in names else frozenset()
    return sorted(set(getattr(target, "__abstractmethods__", ())) | (needed - names))


def check_interface(kind: str, type_key: str, target: Any, path: str) -> None:
    """Check that a part is a class that can be used as a part of its kind.

    Parts of buffers must extend the base class of their kind. Other classes only need its methods.
    Functions that make parts are not checked.

    Raises:
        PluginLoadError: methods, or the base, are missing; facts ``plugin``, ``kind``, ``missing``.
    """
    if not inspect.isclass(target):
        return
    name = f"{target.__module__}.{target.__qualname__}"
    if name.startswith("dingsdk."):
        return
    missing = missing_methods(kind, target)
    # A buffer also calls methods of its parts that only the base implements.
    needs_base = kind in _PARTS and not issubclass(target, _base(kind))
    if missing or needs_base:
        what = f"lacks {listing(missing)}" if missing else "is no subclass"
        place = BASES.get(kind, "dingsdk.policy:BasePolicy")
        raise PluginLoadError(
            f"{path}.type: {type_key!r} is {name}, which {what}; the {kind} "
            f"extend {place.replace(':', '.')}",
            plugin=target.__module__,
            kind=kind,
            missing=missing,
        )


def describe_interface(kind: str, target: Any) -> str:
    """Check that a part extends the base of its kind and has all methods; return what it is.

    The part is not made. ``plugins --check``, ``doctor`` and ``check`` refuse the same parts.

    Raises:
        PluginLoadError: the base is wrong, or a method is missing; ``kind`` is a fact.
    """
    if kind == OBSERVERS:
        hooks = [name for name in vars(target) if name.startswith("dingsdk_")]
        return f"implements {listing(hooks)}" if hooks else ""
    base = _base(kind)
    if base is object:
        return ""
    if not (isinstance(target, type) and issubclass(target, base)):
        raise _unfit(kind, f"{name_of(target)} is no subclass of {BASES[kind].replace(':', '.')}")
    # A class with its own __new__ makes objects of other classes, which have the methods.
    own, usual = (inspect.getattr_static(each, "__new__") for each in (target, base))
    if own is usual and (missing := missing_methods(kind, target)):
        raise _unfit(kind, f"{name_of(target)} lacks {listing(missing)}")
    return f"a subclass of {base.__name__}"


def name_of(target: Any) -> str:
    """Return the full name of a class or function."""
    return f"{target.__module__}.{getattr(target, '__qualname__', target)}"


def _unfit(kind: str, text: str) -> PluginLoadError:
    return PluginLoadError(text, kind=kind, reason="interface")
