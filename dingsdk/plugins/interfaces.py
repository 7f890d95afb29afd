"""How the parts of each kind are made, and checks that a part can be used as one of its kind."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

from dingsdk.errors import PluginLoadError, listing
from dingsdk.plugins.kinds import OBSERVERS


class Interface(NamedTuple):
    """How the parts of a kind are made.

    Attributes:
        base: ``module:name`` of their base class, or "" for kinds that need none.
        arguments: Number of arguments that are given by position; 0 if they are made otherwise.
        keywords: Names of the arguments that are given by name.
    """

    base: str
    arguments: int
    keywords: tuple[str, ...] = ()


_RUN = ("exp_name", "instance_name")
INTERFACES: Mapping[str, Interface] = {
    "transports": Interface("dingsdk.worker.comm:Transport", 2),
    "buffers": Interface("dingsdk.worker:IBuffer", 2, _RUN),
    "storages": Interface("dingsdk.worker.replay_buffer:Storage", 3),
    "samplers": Interface("dingsdk.worker.replay_buffer:Sampler", 3),
    "removers": Interface("dingsdk.worker.replay_buffer:Remover", 3),
    "limiters": Interface("dingsdk.worker.replay_buffer:Limiter", 2),
    "collectors": Interface("dingsdk.worker:ISerialCollector", 4, _RUN),
    "parallel_collectors": Interface("dingsdk.worker:BaseParallelCollector", 1),
    "comm_collectors": Interface("dingsdk.worker:BaseCommCollector", 3),
    "comm_learners": Interface("dingsdk.worker:BaseCommLearner", 3),
    "evaluators": Interface("dingsdk.worker:ISerialEvaluator", 4, _RUN),
    "learners": Interface("dingsdk.worker:BaseLearner", 4, _RUN),
    "learner_hooks": Interface("dingsdk.worker:LearnerHook", 2, ("position", "ext_args")),
    "commanders": Interface("dingsdk.worker:BaseParallelCommander", 1),
    "serial_commanders": Interface("dingsdk.worker:BaseSerialCommander", 6),
    "leagues": Interface("dingsdk.worker:OneVsOneLeague", 1, ("seed",)),
    "datasets": Interface("dingsdk.worker:DatasetFormat", 0),
    "policies": Interface("", 1, ("enable_field", "seed")),
    "env_managers": Interface("dingsdk.envs:EnvManager", 2),
    "env_wrappers": Interface("", 1),
    "roles": Interface("dingsdk.worker.coordinator:Role", 0),
}
"""How the parts of each kind are made; commands are click commands."""

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
    place = INTERFACES[kind].base if kind in INTERFACES else ""
    base: type = resolve_name(place) if place else object
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
        place = (kind in INTERFACES and INTERFACES[kind].base) or "dingsdk.policy:BasePolicy"
        raise PluginLoadError(
            f"{path}.type: {type_key!r} is {name}, which {what}; the {kind} "
            f"extend {place.replace(':', '.')}",
            plugin=target.__module__,
            kind=kind,
            missing=missing,
        )


def describe_interface(kind: str, target: Any) -> str:
    """Check that a part can be made and called as dingsdk does it; return what it is.

    The part is not made. ``plugins --check``, ``doctor`` and ``check`` refuse the same parts.

    Raises:
        PluginLoadError: the base is wrong, or a method or an argument is missing; ``kind`` is a
            fact.
    """
    if kind == "commands":
        return "a click command"  # the registry refuses others
    if kind == OBSERVERS:
        hooks = [name for name in vars(target) if name.startswith("dingsdk_")]
        return f"implements {listing(hooks)}" if hooks else ""
    if kind not in INTERFACES:
        return ""
    interface, base = INTERFACES[kind], _base(kind)
    if base is not object:
        if not (isinstance(target, type) and issubclass(target, base)):
            place = interface.base.replace(":", ".")
            raise _unfit(kind, f"{name_of(target)} is no subclass of {place}")
        # A class with its own __new__ makes objects of other classes, which have the methods.
        own, usual = (inspect.getattr_static(each, "__new__") for each in (target, base))
        if own is usual and (missing := missing_methods(kind, target)):
            raise _unfit(kind, f"{name_of(target)} lacks {listing(missing)}")
        if wrong := list(_misfits(target, base)):
            raise _unfit(kind, "; ".join(wrong))
    signature = inspect.signature(target)
    # The other arguments of a wrapper are in the config.
    bind = signature.bind_partial if kind == "env_wrappers" else signature.bind
    try:
        if interface.arguments:
            bind(*[None] * interface.arguments, **dict.fromkeys(interface.keywords))
    except TypeError as error:
        named = [f"{name}=..." for name in interface.keywords]
        asked = ", ".join([f"{interface.arguments} by position", *named])
        raise _unfit(
            kind, f"{name_of(target)}{signature} cannot be given {asked}: {error}"
        ) from error
    return f"a subclass of {base.__name__}" if base is not object else "called as its kind is"


def name_of(target: Any) -> str:
    """Return the full name of a class or function."""
    return f"{target.__module__}.{getattr(target, '__qualname__', target)}"


def _unfit(kind: str, text: str) -> PluginLoadError:
    return PluginLoadError(text, kind=kind, reason="interface")


def _misfits(target: type, base: type) -> Iterator[str]:
    """Yield a message for each method that cannot be called like that of the base class."""
    for name, expected in inspect.getmembers(base, inspect.isfunction):
        own = getattr(target, name)
        if name.startswith("_") or own is expected or not inspect.isfunction(own):
            continue
        parameters = inspect.signature(expected).parameters.values()
        by_position = [p for p in parameters if _is_plain(p) and p.default is p.empty]
        by_name = [
            p.name
            for p in parameters
            if p.kind is p.KEYWORD_ONLY or (_is_plain(p) and p.default is not p.empty)
        ]
        try:
            inspect.signature(own).bind(*by_position, **dict.fromkeys(by_name))
        except TypeError as error:
            yield (
                f"{target.__qualname__}.{name}{inspect.signature(own)} cannot be called as "
                f"{base.__qualname__}.{name}{inspect.signature(expected)}: {error}"
            )


def _is_plain(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
