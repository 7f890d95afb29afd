from __future__ import annotations

import sys

import pytest

from dingsdk.errors import PluginLoadError
from dingsdk.plugins import KINDS, PluginInfo, PluginManager, Switches

from .conftest import HOOK, OBSERVER, Install


def row(manager: PluginManager, kind: str, key: str, distribution: str | None) -> PluginInfo:
    (found,) = [
        info
        for info in manager.plugins()
        if (info.kind, info.type_key, info.distribution) == (kind, key, distribution)
    ]
    return found


def test_listing_distinguishes_available_and_loaded_and_imports_nothing(ring: Install) -> None:
    manager = PluginManager()

    info = row(manager, "buffers", "ring", "acme-ring")
    assert (info.provider, info.version, info.state) == ("acme_ring", "1.0", "available")
    assert "acme_ring" not in sys.modules

    manager.get("buffers", "ring")
    assert row(manager, "buffers", "ring", "acme-ring").state == "loaded"


def test_listing_contains_builtins_sorted_by_kind() -> None:
    rows = PluginManager().plugins()

    builtin = row(PluginManager(), "buffers", "naive", "dingsdk-rl")
    assert builtin.provider == "dingsdk.worker.replay_buffer.buffers"
    assert builtin.version
    kinds = [info.kind for info in rows]
    assert sorted(kinds, key=(*KINDS, "plugins").index) == kinds


def test_listing_shows_broken_disabled_duplicate_and_shadowed(ring: Install) -> None:
    ring("acme-bad", {"dingsdk.buffers": {"bad": "acme_bad"}}, acme_bad="1 / 0")
    ring("acme-off", {"dingsdk.buffers": {"off": "acme_off"}})
    ring("acme-hoop", {"dingsdk.buffers": {"ring": "acme_hoop"}})
    ring("acme-over", {"dingsdk.buffers": {"naive": "acme_over"}})
    manager = PluginManager(Switches(disabled=("acme-off",)))
    with pytest.raises(PluginLoadError):
        manager.get("buffers", "bad")

    bad = row(manager, "buffers", "bad", "acme-bad")
    assert bad.state == "broken"
    assert "ZeroDivisionError" in bad.detail
    assert row(manager, "buffers", "off", "acme-off").state == "disabled"
    assert row(manager, "buffers", "ring", "acme-ring").state == "duplicate"
    assert row(manager, "buffers", "ring", "acme-hoop").state == "duplicate"
    over = row(manager, "buffers", "naive", "acme-over")
    assert (over.state, over.detail) == ("shadowed", "dingsdk-rl has registered it")


def test_listing_contains_observers_and_types_registered_by_import_names(install: Install) -> None:
    install("acme-eye", {"dingsdk.plugins": {"eye": "acme_eye"}}, acme_eye=OBSERVER)
    install("acme-other", {}, acme_mine=HOOK.format(key="mine"))
    manager = PluginManager()
    assert row(manager, "plugins", "eye", "acme-eye").state == "available"

    manager.load_observers()
    manager.get("buffers", "mine", ["acme_mine"])

    assert row(manager, "plugins", "eye", "acme-eye").state == "loaded"
    (mine,) = [info for info in manager.plugins() if info.type_key == "mine"]
    assert (mine.state, mine.distribution) == ("loaded", None)
