"""Which config section belongs to which kind of component, and what its class expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dingsdk.config import deep_merge_dicts
from dingsdk.errors import ConfigError, ConfigTypeError


@dataclass(frozen=True, slots=True)
class Component:
    """A config section whose ``type`` key names a class of a registry.

    Attributes:
        path: Dotted path of the section.
        kind: The registry.
        default_type: The type where neither the config nor the policy names one; None for
            that of the transport.
        parallel_only: Whether serial mode does without it.
    """

    path: str
    kind: str
    default_type: str | None
    parallel_only: bool = False


COMPONENTS = (
    Component("env_manager", "env_managers", "vector"),
    Component("policy.learn.learner", "learners", "base"),
    Component("policy.collect.collector", "collectors", "sample"),
    Component("policy.collect.parallel_collector", "parallel_collectors", "zergling"),
    Component("policy.eval.evaluator", "evaluators", "interaction"),
    Component("policy.other.replay_buffer", "buffers", "naive"),
    Component("policy.other.commander", "commanders", "solo"),
    Component("system.transport", "transports", "in_memory", parallel_only=True),
    Component("system.collector", "comm_collectors", "base", parallel_only=True),
    Component("system.learner", "comm_learners", "base", parallel_only=True),
)

NESTED = {
    "storage": "storages",
    "sampler": "samplers",
    "remover": "removers",
    "limiter": "limiters",
}
"""Parts inside a buffer's section, by key, with the registry that their ``type`` names."""


def section_of(cfg: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the section at a dotted path, ``{}`` where the config does not have it.

    Raises:
        ConfigTypeError: something on the way is no section.
    """
    section: Any = cfg
    walked: list[str] = []
    for key in path.split("."):
        walked.append(key)
        section = section.get(key)
        if section is None:
            return {}
        if not isinstance(section, Mapping):
            where = ".".join(walked)
            raise ConfigTypeError(
                f"{where}: expected a section, found {section!r} ({type(section).__name__})",
                path=where,
                expected="a section",
                found=section,
            )
    return dict(section)


def set_section(cfg: dict[str, Any], path: str, section: Mapping[str, Any]) -> None:
    """Merge ``section`` into ``cfg`` at a dotted path, making the sections on the way."""
    *parents, last = path.split(".")
    target = cfg
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = deep_merge_dicts(target.get(last), section)


def type_of(section: Mapping[str, Any], default: str | None, path: str) -> str:
    """Return the ``type`` of a section.

    Raises:
        ConfigError: there is none and no default.
        ConfigTypeError: it is no text.
    """
    named = section.get("type", default)
    if named is None:
        raise ConfigError(
            f"{path}.type is missing: name the type of this part", path=f"{path}.type"
        )
    if not isinstance(named, str):
        raise ConfigTypeError(
            f"{path}.type: expected text, found {named!r} ({type(named).__name__})",
            path=f"{path}.type",
            expected="text",
            found=named,
        )
    return named


def defaults_of_class(cls: Any, type_key: str) -> dict[str, Any]:
    """Return the defaults of a component class as a plain dict, with ``type`` filled in."""
    make = getattr(cls, "default_config", None)
    # Merged, not made plain: a default may be a callable, such as a schedule.
    found = deep_merge_dicts({}, make()) if callable(make) else {}
    found.pop("cfg_type", None)
    return deep_merge_dicts(
        found, {"type": type_key, "import_names": found.get("import_names", [])}
    )


def has_defaults(cls: Any) -> bool:
    """Whether the class states its defaults; the keys of one that does not are not checked."""
    return callable(getattr(cls, "default_config", None))
