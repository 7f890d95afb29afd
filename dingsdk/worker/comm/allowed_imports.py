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
_LEAVES = frozenset({str, int, float, bool, type(None)})


def named_modules(config: Any) -> set[str]:
    """Return the modules that any part of a config imports.

    Args:
        config: A config, a part of one, or a task that contains one. Modules are named by
            ``import_names``, and by ``env_id`` (``module:EnvId``), opponents and data, at any
            depth.
    """
    found: set[str] = set()
    rest = [config]
    while rest:
        each = rest.pop()
        if type(each) in _LEAVES:
            continue
        if isinstance(each, (dict, Mapping)):  # the check for dict is ten times as fast
            for key in _NAMING & each.keys():
                value = each[key]
                is_list = key in _LISTS and isinstance(value, (list, tuple))
                names = [name for name in (value if is_list else [value]) if isinstance(name, str)]
                is_module = key == "import_names"
                found.update(names if is_module else (name.rpartition(":")[0] for name in names))
            rest += [value for value in each.values() if type(value) not in _LEAVES]
        elif isinstance(each, (list, tuple)):
            rest += each
    return found - {""}


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
