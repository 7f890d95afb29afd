"""The content of a plugin manager, as rows to show, and as plain text for child processes."""

from __future__ import annotations

import functools
import logging
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.discovery import Advert, version_of
from dingsdk.plugins.kinds import KINDS, NAMES, OBSERVERS
from dingsdk.plugins.registry import Entry, place_of

if TYPE_CHECKING:
    from dingsdk.plugins.manager import PluginManager

State = Literal["loaded", "available", "broken", "disabled", "too new", "duplicate", "shadowed"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One type from one provider.

    Attributes:
        kind: One of ``KINDS``, or ``plugins`` for a plugin that only observes.
        type_key: The type, as written in configs.
        provider: The module that provides the type.
        distribution: The installed distribution that contains the module, or None.
        version: The version of the distribution, or None.
        state: ``loaded``; ``available``: it is imported when a config names it; ``broken``: its
            last load failed; ``disabled`` by a switch; ``too new``: written for another version of
            the kind's contract, or for a newer dingsdk; ``duplicate``: several installed plugins
            provide this type; ``shadowed``: something else is registered under its key.
        detail: The reason, for the last five states.
    """

    kind: str
    type_key: str
    provider: str
    distribution: str | None
    version: str | None
    state: State
    detail: str = ""


def list_plugins(manager: PluginManager) -> list[PluginInfo]:
    """Return one row per type and provider, by kind in the order of KINDS, then by type."""
    rows: list[PluginInfo] = []
    version = functools.cache(version_of)  # `version_of` reads a file
    for kind in (*KINDS, OBSERVERS):
        adverts = manager.adverts(kind)
        usable = Counter(a.key for a in adverts if manager.why_not(a) is None)
        found = [
            PluginInfo(
                kind, a.key, a.module, a.distribution, a.version, *_state(manager, a, usable)
            )
            for a in adverts
        ]
        advertised = {(a.key, a.distribution) for a in adverts}
        if (registry := manager.registries.get(kind)) is not None:
            found += [
                _registered(kind, key, entry, version(entry.owner))
                for key, entry in registry.entries()
                if (key, entry.owner) not in advertised
            ]
        rows += sorted(found, key=lambda row: (row.type_key, row.provider))
    return rows


def _state(manager: PluginManager, advert: Advert, usable: Counter[str]) -> tuple[State, str]:
    why_not = manager.why_not(advert)
    if why_not is not None:
        return "too new" if why_not == advert.misfit else "disabled", why_not
    registry = manager.registries.get(advert.kind)
    entry = registry.entry(advert.key) if registry is not None else None
    is_loaded = advert.module in manager.modules if registry is None else entry is not None
    if is_loaded and (entry is None or entry.owner == advert.distribution):
        return "loaded", ""
    if advert.module in manager.failures:
        return "broken", manager.failures[advert.module]
    if entry is not None:
        return "shadowed", f"{entry.owner} has registered it"
    if usable[advert.key] > 1 and registry is not None:
        return "duplicate", f"{usable[advert.key]} installed plugins provide it"
    return "available", ""


def _registered(kind: str, key: str, entry: Entry, version: str | None) -> PluginInfo:
    module = (entry.place or "").partition(":")[0] or getattr(entry.target, "__module__", "")
    is_loaded = entry.target is not None or module in sys.modules
    return PluginInfo(
        kind,
        key,
        module or entry.owner,
        entry.owner if version else None,
        version,
        "loaded" if is_loaded else "available",
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The registered types and the log level, as plain data that can be sent to child processes.

    Attributes:
        modules: (module, owner) of the plugins to load again, in order.
        entries: (kind, type key, owner, ``module:qualname``) of all registered types that are
            not built in and that another process can import.
        log_level: Level of the logger ``dingsdk``; 0 if none was set.
        given: ``module:name`` of the envs that a program gave as classes or functions.
    """

    modules: tuple[tuple[str, str], ...]
    entries: tuple[tuple[str, str, str, str], ...]
    log_level: int = 0
    given: tuple[str, ...] = ()


def take_snapshot(manager: PluginManager, without: Collection[str]) -> Snapshot:
    """Return the plugins that ``manager`` has loaded, and its types that are not built in.

    See ``PluginManager.snapshot`` for ``without``.
    """
    unneeded = {each.module for each in manager.adverts() if each.kind in without}
    needed = {each.module for each in manager.adverts() if each.kind not in {*without, NAMES}}
    modules = [pair for pair in manager.modules.items() if pair[0] not in unneeded - needed]
    entries = [
        (kind, key, entry.owner, place)
        for kind, registry in manager.registries.items()
        for key, entry in registry.entries()
        if (kind, key, entry.place) not in BUILTINS
        and (place := entry.place or _importable_place(entry.target)) is not None
    ]
    level = logging.getLogger("dingsdk").level
    return Snapshot(tuple(modules), tuple(entries), level, tuple(sorted(manager.given)))


def _importable_place(target: object) -> str | None:
    from dingsdk.runtime.spawn import is_at_top  # not at the top: it imports multiprocessing

    return place_of(target) if is_at_top(target) else None
