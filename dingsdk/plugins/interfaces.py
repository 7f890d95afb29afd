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
    "collectors": frozenset(("close", "envstep")),
    "comm_collectors": frozenset(("close", "start")),
    "comm_learners": frozenset(("close", "start")),
    "evaluators": frozenset(("close", "should_eval")),
    "learners": frozenset(
        ("call_hook", "close", "register_hook", "save_checkpoint", "start", "train")
    ),
    "policies": frozenset(("collect_mode", "eval_mode", "learn_mode")),
    "leagues": frozenset(("active_players_ids", "finish_job", "get_job_info", "state_dict")),
    "serial_commanders": frozenset({"step"}),
}
"""Members that are not abstract in the base, but that a class without the base must have."""
_EXTENDED = frozenset(("transports", "storages", "samplers", "removers", "limiters"))
"""Kinds whose parts must extend the base: also methods that only the base implements are called."""
_CLASSES = frozenset(
    ("transports", "buffers", "evaluators", "learners", "commanders", "env_managers", "policies")
)
"""Kinds whose class tells facts before a part is made, so that a function cannot replace it."""


def _needed(kind: str) -> frozenset[str]:
    base = _base(kind)
    own: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    methods = inspect.getmembers_static(base, inspect.isfunction) if kind in _EXTENDED else ()
    return own.union(_CALLED.get(kind, ()), (name for name, _ in methods if name[0] != "_"))


def _base(kind: str) -> type:
    base: type = resolve_name(BASES[kind]) if kind in BASES else object
    return base


def missing_members(kind: str, part: object) -> list[str]:
    """Return the names of the public methods that an object lacks to be a part of a kind."""
    own = getattr(part, "__dict__", {})
    names = missing_methods(kind, type(part))
    return [n for n in names if (n[0] != "_" or n.startswith("__")) and n not in own]


def check_made(kind: str, target: Any, made: object, where: str) -> None:
    """Check that what a function or class made can be used as a part of a kind.

    Args:
        kind: The kind.
        target: What is registered.
        made: What it returned.
        where: Where a config names it, and the plugin, for the message.

    Raises:
        PluginLoadError: methods are missing; facts ``plugin``, ``kind``, ``missing``.
    """
    if missing := missing_members(kind, made):
        raise PluginLoadError(
            f"{where}: {name_of(target)} returned {made!r:.80}, which lacks {listing(missing)}; "
            f"return one of the {kind}",
            plugin=target.__module__,
            kind=kind,
            missing=missing,
        )


def missing_methods(kind: str, target: type) -> list[str]:
    """Return the names of the methods that a class lacks to be used as a part of a kind.

    A class with ``__getattr__``, such as a wrapper, may have any method.
    """
    # Looked up in vars(), because `hasattr(cls, "__call__")` finds the one of the metaclass.
    names = {name for each in target.__mro__ for name in vars(each)}
    needed = _needed(kind) if "__getattr__" not in names else frozenset()
    return sorted(set(getattr(target, "__abstractmethods__", ())) | (needed - names))


def check_interface(kind: str, target: Any, where: str = "") -> None:
    """Check that a class, or a function that makes parts, can be used as a part of its kind.

    Transports and parts of buffers must extend the base class of their kind. Other classes only
    need its methods. Some kinds need a class; ``check_made`` checks what a function makes.

    Args:
        kind: The kind.
        target: What is registered. A class of dingsdk, or one with its own ``__new__``, which may
            make objects of other classes, is not checked.
        where: Where a config names it, for the message.

    Raises:
        PluginLoadError: methods, the base or a class is missing; facts ``plugin``, ``kind``,
            ``missing``.
    """
    is_class = inspect.isclass(target)
    if kind in _CLASSES and not is_class:
        raise PluginLoadError(
            f"{where}{name_of(target)} is no class; a run asks the classes of {kind} for facts "
            "before it makes one, so register a class",
            plugin=target.__module__,
            kind=kind,
            missing=[],
        )
    if not is_class or target.__module__.startswith("dingsdk."):
        return
    base = _base(kind)
    own, usual = (inspect.getattr_static(each, "__new__") for each in (target, base))
    missing = missing_methods(kind, target) if own is usual else []
    place = BASES.get(kind, "dingsdk.policy:BasePolicy").replace(":", ".")
    is_other = kind in _EXTENDED and not issubclass(target, base)
    if is_other or missing:
        what = f"is no subclass of {place}" if is_other else f"lacks {listing(missing)}"
        raise PluginLoadError(
            f"{where}{name_of(target)} {what}; the {kind} extend {place}",
            plugin=target.__module__,
            kind=kind,
            missing=missing,
        )


def describe_interface(kind: str, target: Any) -> str:
    """Check a part as ``check_interface`` does; return what it is. The part is not made."""
    if kind == OBSERVERS:
        hooks = [name for name in vars(target) if name.startswith("dingsdk_")]
        return f"implements {listing(hooks)}" if hooks else ""
    check_interface(kind, target)
    base = _base(kind)
    is_of_base = base is not object and inspect.isclass(target) and issubclass(target, base)
    return f"a subclass of {base.__name__}" if is_of_base else ""


def name_of(target: Any) -> str:
    """Return the full name of a class or function."""
    return f"{target.__module__}.{getattr(target, '__qualname__', target)}"
