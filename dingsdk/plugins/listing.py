"""What ``dingsdk plugins`` shows: every type there is, who provides it and how it stands."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dingsdk.plugins.discovery import Advert, version_of
from dingsdk.plugins.kinds import KINDS, OBSERVERS
from dingsdk.plugins.registry import Entry

if TYPE_CHECKING:
    from dingsdk.plugins.manager import PluginManager

State = Literal["loaded", "available", "broken", "disabled", "duplicate", "shadowed"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One type of one provider.

    Attributes:
        kind: One of ``KINDS``, or ``plugins`` for one that only observes.
        type_key: The type, as configs spell it.
        provider: The module that provides it.
        distribution: The installed distribution it comes from, or None.
        version: The version of the distribution, or None.
        state: ``loaded``; ``available``, to be imported when named; ``broken``, its last load
            failed; ``disabled`` by a switch; ``duplicate``, several installed plugins
            advertise it; ``shadowed``, something else is registered under its key.
        detail: Why, for the last four states.
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
    for kind in (*KINDS, OBSERVERS):
        adverts = manager.adverts(kind)
        usable = Counter(a.key for a in adverts if manager.why_not(a) is None)
        found = [_advertised(manager, advert, usable[advert.key]) for advert in adverts]
        if kind != OBSERVERS:
            registry = manager.registry(kind)
            advertised = {(a.key, a.distribution) for a in adverts}
            for key in registry.query():
                entry = registry.entry(key)
                if entry is not None and (key, entry.owner) not in advertised:
                    found.append(_registered(kind, key, entry))
        rows += sorted(found, key=lambda row: (row.type_key, row.provider))
    return rows


def _advertised(manager: PluginManager, advert: Advert, providers: int) -> PluginInfo:
    state, detail = _state_of(manager, advert, providers)
    return PluginInfo(
        advert.kind, advert.key, advert.module, advert.distribution, advert.version, state, detail
    )


def _state_of(manager: PluginManager, advert: Advert, providers: int) -> tuple[State, str]:
    why_not = manager.why_not(advert)
    if why_not is not None:
        return "disabled", why_not
    if advert.kind == OBSERVERS:
        entry = None
        is_loaded = advert.module in manager.loader.modules
    else:
        entry = manager.registry(advert.kind).entry(advert.key)
        is_loaded = entry is not None and entry.owner == advert.distribution
    if is_loaded:
        return "loaded", ""
    if advert.module in manager.loader.failures:
        return "broken", manager.loader.failures[advert.module]
    if entry is not None:
        return "shadowed", f"{entry.owner} has registered it"
    if providers > 1 and advert.kind != OBSERVERS:
        return "duplicate", f"{providers} installed plugins provide it"
    return "available", ""


def _registered(kind: str, key: str, entry: Entry) -> PluginInfo:
    module = (entry.place or "").partition(":")[0] or getattr(entry.target, "__module__", "")
    is_loaded = entry.target is not None or module in sys.modules
    distribution = entry.owner if version_of(entry.owner) else None
    return PluginInfo(
        kind,
        key,
        module or entry.owner,
        distribution,
        version_of(entry.owner),
        "loaded" if is_loaded else "available",
    )
