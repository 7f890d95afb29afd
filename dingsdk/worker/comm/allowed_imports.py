"""Checks that a received task imports only modules that the receiver's own config names.

The sender of a task can choose among the registered and installed types, and set their
arguments. If it could import any other module too, it could run any code on the module path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dingsdk.errors import UntrustedImportError

_LISTS = frozenset({"import_names", "eval_opponents"})
_NAMING = _LISTS | {"env_id", "eval_opponent", "data"}


def named_modules(config: Any) -> set[str]:
    """Return the modules that any part of a config imports.

    Args:
        config: A config, a part of one, or a task that contains one. Modules are named by
            ``import_names``, and by ``env_id`` (``module:EnvId``), opponents and data, at any
            depth.
    """
    if isinstance(config, Mapping):
        found = {name for key, value in config.items() for name in _named_by(key, value)}
        return found.union(*map(named_modules, config.values()))
    if isinstance(config, (list, tuple)):
        return set[str]().union(*map(named_modules, config))
    return set()


def _named_by(key: str, value: Any) -> list[str]:
    values = value if key in _LISTS and isinstance(value, (list, tuple)) else [value]
    names = [each for each in values if key in _NAMING and isinstance(each, str)]
    if key != "import_names":
        names = [name.rpartition(":")[0] for name in names]
    return [name for name in names if name]


def check_imports(task: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse a received task that would import modules that are not in ``allowed``.

    Raises:
        UntrustedImportError: the task names such a module; nothing was imported.
    """
    refused = sorted(named_modules(task) - set(allowed))
    if refused:
        raise UntrustedImportError(
            f"a received task asks to import {', '.join(f'{name!r:.100}' for name in refused)}, "
            "which this worker's own config does not name; start workers with the config of "
            "their coordinator, or list the modules in allowed_modules of system.collector "
            "and system.learner",
            modules=refused,
            allowed=sorted(allowed),
        )
