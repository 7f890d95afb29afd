"""Unusable or unsafe folders are rejected by name, at the start or when they disappear."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.data import SampleBatch, encode_json
from dingsdk.errors import CheckpointCorruptError, DataMissingError, RunFolderError
from tools.os_calls import recorded_writes

from .conftest import NOBODY, as_nobody, listener


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def linked(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")


def a_file(path: Path) -> None:
    path.write_text("mine")


def somebody_elses(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize("make", [open_to_all, linked, a_file, somebody_elses])
def test_unsafe_folder_is_refused_by_every_part(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "shared"
    make(folder)
    transport = FlaskFSTransport({"data_dir": str(folder)}, tmp_path / "run")
    for part in (
        transport.master_end,
        lambda: transport.slave_end("http://127.0.0.1:9"),
        transport.data_store,
        transport.policy_store,
    ):
        with pytest.raises(RunFolderError) as caught:
            part()
        assert caught.value.path == str(folder)
    transport.close()
    assert not folder.is_dir() or list(folder.iterdir()) == []


def test_folder_that_cannot_be_written_is_refused() -> None:
    done = as_nobody(
        """
        from dingsdk.errors import RunFolderError
        folder = HOME / "readonly"
        folder.mkdir(mode=0o500)
        transport = FlaskFSTransport({"data_dir": str(folder)}, HOME / "run")
        for part in (
            lambda: transport.master_end().open(None), transport.data_store, transport.policy_store
        ):
            try:
                part()
            except RunFolderError as error:
                print("refused", error.path.startswith(str(folder)))
        transport.close()
        """,
    )
    assert done.splitlines() == ["refused True"] * 3, done


class Canary:
    fired = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Canary, "fired", True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        encode_json("run-epoch", {"run": "../x", "epoch": 1}),
        encode_json("run-epoch", {"run": "0123456789abcdef" * 2, "epoch": "1"}),
        encode_json("run-epoch", {"run": "0123456789abcdef" * 2, "epoch": 0}),
        encode_json("run-epoch", {"run": "0123456789abcdef" * 2}),
        encode_json("newest-policy", {"run": "0123456789abcdef" * 2, "epoch": 1}),
        b"x" * 5000,
        pickle.dumps(Canary()),
    ],
)
def test_damaged_epoch_file_fails_the_start(tmp_path: Path, content: bytes) -> None:
    transport = FlaskFSTransport({}, tmp_path / "run")
    master = transport.master_end()
    note = transport.data_dir / "epoch.json"
    note.write_bytes(content)
    note.chmod(0o600)
    with pytest.raises(CheckpointCorruptError, match=r"epoch\.json"):
        master.open(listener())
    assert note.read_bytes() == content
    assert not Canary.fired
    transport.close()


def test_folder_with_a_name_that_is_too_long_is_refused_and_needs_no_removal(
    tmp_path: Path,
) -> None:
    transport = FlaskFSTransport({"data_dir": str(tmp_path / ("x" * 300))}, tmp_path / "run")
    with pytest.raises(RunFolderError, match="name too long"):
        transport.master_end().open(listener())
    transport.remove_data()
    transport.close()


def test_removed_folder_is_reported_by_every_operation(tmp_path: Path) -> None:
    transport = FlaskFSTransport({}, tmp_path / "run")
    data, policies, master = (
        transport.data_store(),
        transport.policy_store(),
        transport.master_end(),
    )
    data.put("a", SampleBatch({"c": np.arange(3)}))
    policies.publish("p", {"w": torch.ones(2)}, 1)
    shutil.rmtree(transport.data_dir)
    for use in (
        lambda: data.put("b", SampleBatch({"c": np.arange(3)})),
        lambda: policies.publish("p", {"w": torch.ones(2)}, 2),
        lambda: master.open(listener()),
    ):
        with pytest.raises(RunFolderError) as caught:
            use()
        assert caught.value.path.startswith(str(transport.data_dir))
    with pytest.raises(DataMissingError):
        data.get("a", timeout_s=0.1)
    assert policies.newest("p") is None
    data.delete(["a"])
    assert data.sweep_orphans([].__contains__, 0.0) == 0
    transport.close()


def test_files_for_a_restarted_master_survive_a_power_cut(tmp_path: Path) -> None:
    transport = FlaskFSTransport({}, tmp_path / "run")
    with recorded_writes() as log:
        transport.master_end().open(listener())
    transport.close()
    assert log.is_durable(transport.data_dir / "epoch.json")
    assert log.is_durable(transport.data_dir / "secret")
