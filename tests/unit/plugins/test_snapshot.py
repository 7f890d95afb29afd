from __future__ import annotations

import logging
import multiprocessing
from collections import OrderedDict
from pathlib import Path

import pytest

from dingsdk.errors import PluginLoadError
from dingsdk.plugins import PluginManager, Snapshot, default_manager

from .conftest import Install


def ask_child(snapshot: Snapshot, conn: multiprocessing.connection.Connection) -> None:
    manager = default_manager()
    manager.restore(snapshot)
    ring = manager.create("buffers", {"type": "ring"})
    conn.send([type(ring).__module__, manager.get("storages", "ordered").__name__])
    conn.close()


def test_spawned_process_can_create_types_that_its_parent_registered(
    ring: Install, tmp_path: Path
) -> None:
    manager = PluginManager()
    manager.get("buffers", "ring")
    manager.registry("storages").register("ordered", OrderedDict)
    # Without the metadata, the child can find the plugin only through the snapshot.
    (tmp_path / "site" / "acme_ring-1.0.dist-info" / "entry_points.txt").unlink()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)

    child = context.Process(target=ask_child, args=(manager.snapshot(), sender))
    child.start()
    sender.close()
    try:
        assert receiver.poll(60)
        assert receiver.recv() == ["acme_ring", "OrderedDict"]
    finally:
        child.join(60)
        receiver.close()
    assert child.exitcode == 0


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
