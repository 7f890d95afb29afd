"""What a received task may have imported: nothing but what its receiver's own config names.

Whoever can send tasks can choose among the types that are registered or installed here, and
set what they are made with. To have any other module imported would be to run code of its
choice, as everything on the module path is code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dingsdk.errors import UntrustedImportError

_LISTS = frozenset({"import_names", "eval_opponents"})
_NAMING = _LISTS | {"env_id", "eval_opponent", "data"}
_LEAVES = frozenset({str, int, float, bool, type(None)})


def named_modules(config: Any) -> set[str]:
    """Return the modules that a config has imported, whichever of its parts names them.

    Args:
        config: A config, a part of one, or a task that holds some: ``import_names`` are read,
            and the modules of ``env_id: module:EnvId`` of opponents and of data, at any depth.
    """
    found: set[str] = set()
    rest = [config]
    while rest:
        each = rest.pop()
        if type(each) in _LEAVES:
            continue
        if isinstance(each, (dict, Mapping)):  # a dict is known ten times as fast
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
    """Refuse a received task that would import something else than ``allowed``.

    Raises:
        UntrustedImportError: it would; nothing was imported.
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
