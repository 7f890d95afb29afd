"""What is registered, in a form that a child process can take over."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dingsdk.errors import PluginLoadError
from dingsdk.plugins.loader import report
from dingsdk.plugins.registry import Entry, place_of

if TYPE_CHECKING:
    from dingsdk.plugins.manager import PluginManager


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Plain text only, so that any start method and any pickle can carry it.

    Attributes:
        modules: (module, owner) of the plugins to load again, in order.
        entries: (kind, type key, owner, ``module:qualname``) of every registered type that is
            not built in.
        left_behind: (kind, type key) of those that no other process can import, such as
            classes made inside a function.
    """

    modules: tuple[tuple[str, str], ...]
    entries: tuple[tuple[str, str, str, str], ...]
    left_behind: tuple[tuple[str, str], ...]


def take_snapshot(manager: PluginManager) -> Snapshot:
    """Return what ``manager`` has loaded and registered beyond the built-ins."""
    entries: list[tuple[str, str, str, str]] = []
    left_behind: list[tuple[str, str]] = []
    for kind, registry in manager.registries.items():
        for key in registry.query():
            entry = registry.entry(key)
            if entry is None or (kind, key, entry.place) in manager.builtins:
                continue
            place = _importable_place(entry)
            if place is None:
                left_behind.append((kind, key))
            else:
                entries.append((kind, key, entry.owner, place))
    return Snapshot(tuple(manager.loader.modules.items()), tuple(entries), tuple(left_behind))


def restore_snapshot(manager: PluginManager, snapshot: Snapshot) -> None:
    """Load the plugins and declare the types of ``snapshot``; what is here already stays.

    A plugin that cannot be loaded here is logged, or raises under ``DINGSDK_STRICT_PLUGINS``;
    its types are declared all the same, and say what is wrong when they are used.
    """
    for module, owner in snapshot.modules:
        try:
            manager.loader.load(module, owner)
        except PluginLoadError as error:
            report(error, manager.switches.strict)
    for kind, key, owner, place in snapshot.entries:
        registry = manager.registry(kind)
        entry = registry.entry(key)
        if entry is None or place not in (entry.place, place_of(entry.target)):
            registry.declare(key, place, owner, force_overwrite=True)


def _importable_place(entry: Entry) -> str | None:
    if entry.place is not None:
        return entry.place
    place = place_of(entry.target)
    if place is None:
        return None
    module, _, name = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return place if found is entry.target else None
