"""The names that DI-engine uses for ``type`` and ``import_names``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk.errors import ConfigError

ALIASES: Mapping[str, str] = {
    "comm_collector_type": "type",
    "comm_learner_type": "type",
    "learner_type": "type",
    "parallel_commander_type": "type",
    "import_module": "import_names",
}


_COMM_ALIASES = ("comm_learner_type", "comm_collector_type")


def rename_all_aliases(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a whole config as by ``rename_aliases``.

    Aliases of types in ``system`` itself name the transport.

    Raises:
        ConfigError: an alias that contradicts the name it stands for.
    """
    system = cfg.get("system")
    if isinstance(system, Mapping) and not system.keys().isdisjoint(_COMM_ALIASES):
        kinds = {alias: system[alias] for alias in _COMM_ALIASES if alias in system}
        rest = {key: value for key, value in system.items() if key not in kinds}
        transport = rename_aliases({**rest.get("transport", {}), **kinds}, "system.transport")
        cfg = {**cfg, "system": {**rest, "transport": transport}}
    return rename_aliases(cfg)


def rename_aliases(section: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a copy of a section with its aliases renamed and without ``cfg_type``, at any depth.

    Raises:
        ConfigError: an alias and the name that it stands for are both given, with different values.
    """
    renamed = {
        key: rename_aliases(value, f"{path}.{key}" if path else key)
        if isinstance(value, Mapping)
        else value
        for key, value in section.items()
        if key not in ALIASES and key != "cfg_type"
    }
    for alias in ALIASES.keys() & section.keys():
        value, name = section[alias], ALIASES[alias]
        if renamed.setdefault(name, value) != value:
            where = f"{path}.{alias}" if path else alias
            raise ConfigError(
                f"{where} is {value!r}, but {name} beside it is {renamed[name]!r}; keep one of "
                "them",
                path=where,
            )
    return renamed
