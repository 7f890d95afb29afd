"""Types that several distributions provide, and plugins for other contract versions."""

from __future__ import annotations

import pytest

from dingsdk.errors import PluginLoadError
from dingsdk.plugins import PluginManager, Switches
from dingsdk.plugins.discovery import version_of

from .conftest import Install

SOURCE = """
    from dingsdk import hookimpl
    class Ring:
        def __init__(self, cfg):
            self.owner = "{owner}"
    @hookimpl
    def dingsdk_register_buffers(registry):
        registry.register("{key}", Ring)
        registry.register("{owner}_own", Ring)
"""


@pytest.fixture
def rings(install: Install) -> PluginManager:
    for owner in ("acme_a", "acme_b"):
        points = {"dingsdk.buffers": {"ring": owner, f"{owner}_own": owner}}
        source = SOURCE.format(key="ring", owner=owner)
        install(owner.replace("_", "-"), points, **{owner: source})
    return PluginManager()


def owner_of(manager: PluginManager, type_key: str) -> str:
    return str(manager.create("buffers", {"type": type_key}).owner)


def test_type_of_two_plugins_is_refused_with_both_also_if_one_is_loaded(
    rings: PluginManager,
) -> None:
    for _ in range(2):
        with pytest.raises(PluginLoadError, match=r"acme-a 1.* and acme-b 1") as caught:
            rings.get("buffers", "ring")
        assert caught.value.reason == "duplicate"
        assert owner_of(rings, "acme_a_own") == "acme_a"
    with pytest.raises(PluginLoadError, match="acme-a has it already"):
        rings.get("buffers", "acme_b_own")


def test_disabled_plugin_does_not_count_as_a_provider(rings: PluginManager) -> None:
    manager = PluginManager(Switches(disabled=("acme-a",)))

    assert owner_of(manager, "ring") == "acme_b"
    assert owner_of(manager, "acme_b_own") == "acme_b"


@pytest.mark.parametrize(
    ("version", "text"), [("v2", "version 2 of the contract of the buffers"), ("two", "'two'")]
)
def test_plugin_for_another_contract_is_refused_before_it_is_imported(
    install: Install, version: str, text: str
) -> None:
    points = {
        "dingsdk.buffers": {"ring": "acme_a"},
        "dingsdk.storages": {"store": "acme_a"},
        "dingsdk.contracts": {"buffers": version},
    }
    install("acme-a", points, acme_a="raise OSError('imported')")
    manager = PluginManager()

    with pytest.raises(PluginLoadError, match=text) as caught:
        manager.get("buffers", "ring")

    assert caught.value.reason == "too new"
    (row,) = [row for row in manager.plugins() if row.type_key == "ring"]
    assert (row.state, "ring" in manager.known("buffers")) == ("too new", False)
    with pytest.raises(PluginLoadError, match="imported"):
        manager.get("storages", "store")


@pytest.mark.parametrize(
    ("requires", "needs"),
    [
        ("dingsdk-rl>=99.1", "99.1"),
        ("DINGSDK_rl[hdf5] (<100, >=99.1.0)", "99.1.0"),
        ("dingsdk-rl~=99.1", "99.1"),
        ("dingsdk-rl>=0.0.1", ""),
        (f"dingsdk-rl=={version_of('dingsdk-rl')}.0", ""),
        ("dingsdk-rl>=99; extra == 'test'", ""),
        ("numpy>=99", ""),
    ],
)
def test_plugin_for_a_newer_dingsdk_is_refused_before_it_is_imported(
    install: Install, requires: str, needs: str
) -> None:
    points = {"dingsdk.buffers": {"ring": "acme_a"}}
    install("acme-a", points, requires=[requires], acme_a="raise OSError('imported')")
    manager = PluginManager()

    text = f"requires dingsdk-rl {needs} or newer, and .*; upgrade dingsdk" if needs else "imported"
    with pytest.raises(PluginLoadError, match=text) as caught:
        manager.get("buffers", "ring")

    (row,) = [row for row in manager.plugins() if row.type_key == "ring"]
    assert (caught.value.reason, row.state) == (("too new",) * 2 if needs else ("broken",) * 2)
