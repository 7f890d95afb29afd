from __future__ import annotations

import logging

import pytest

from dingsdk.errors import PluginLoadError
from dingsdk.plugins import PluginManager, Snapshot

from .conftest import Install


def test_plugins_of_kinds_that_the_child_does_not_need_are_imported_on_use(ring: Install) -> None:
    both = {"dingsdk.buffers": {"both": "acme_both"}, "dingsdk.samplers": {"both": "acme_both"}}
    ring("acme-both", both, acme_both="")
    ring("acme-name", {"dingsdk.names": {"Acme": "acme_name:Acme"}}, acme_name="")
    ring("acme-envs", {}, acme_envs="")
    manager = PluginManager()
    manager.get("buffers", "ring")
    others = ("acme_both", "acme_name", "acme_envs")  # these modules may register any kind
    for module in others:
        manager.load(module)

    assert manager.snapshot(without=["storages"]) == manager.snapshot()
    snapshot = manager.snapshot(without=["buffers", "storages"])

    assert snapshot.modules == tuple(zip(others, others, strict=True))
    assert snapshot.entries == manager.snapshot().entries
    other = PluginManager(discover=list)
    other.restore(snapshot)
    assert other.get("buffers", "ring").__module__ == "acme_ring"


def test_missing_plugin_is_logged_on_restore_and_raises_on_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshot = Snapshot(
        (("acme_gone", "acme-gone"),), (("buffers", "gone", "acme-gone", "acme_gone:Gone"),)
    )
    manager = PluginManager()

    manager.restore(snapshot)

    assert "acme-gone" in caplog.text
    with pytest.raises(PluginLoadError, match="acme_gone"):
        manager.get("buffers", "gone")


@pytest.mark.parametrize(("parent", "child"), [(logging.NOTSET, 7), (logging.ERROR, logging.ERROR)])
def test_child_process_logs_at_a_level_that_was_set_in_its_parent(parent: int, child: int) -> None:
    logger = logging.getLogger("dingsdk")
    before = logger.level
    try:
        logger.setLevel(parent)
        snapshot = PluginManager().snapshot()
        logger.setLevel(7)
        PluginManager().restore(snapshot)
        assert logger.level == child
    finally:
        logger.setLevel(before)
