"""Only one run at a time can use a folder; a second one gets an error and deletes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from dingsdk_flask_fs.folder_lock import folder_lock
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk import SampleBatch
from dingsdk.errors import RunDirLockedError, RunFolderError

from .conftest import listener

DIE_WITH_THE_LOCK = """
import os, sys
from pathlib import Path
from dingsdk_flask_fs.transport import FlaskFSTransport
FlaskFSTransport({"data_dir": sys.argv[1]}, Path(sys.argv[1])).master_end().open(object())
os._exit(0)
"""


def transport_in(folder: Path) -> FlaskFSTransport:
    return FlaskFSTransport({"data_dir": str(folder), "threads": 8}, folder.parent)


def test_second_run_in_a_folder_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    first, second = transport_in(tmp_path / "data"), transport_in(tmp_path / "data")
    first.master_end().open(listener())
    first.data_store().put("payload", SampleBatch({"x": np.zeros(3)}))

    with pytest.raises(RunDirLockedError) as caught:
        second.master_end().open(listener())
    second.close()
    with pytest.raises(RunDirLockedError):
        second.remove_data()

    assert caught.value.path == str(tmp_path / "data")
    assert f"process {os.getpid()} on" in str(caught.value)
    assert first.data_store().has("payload", 0.0)
    first.close()
    first.remove_data()
    assert not (tmp_path / "data").exists()


def test_lock_fails_without_waiting_and_any_thread_can_release_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    first = ExitStack()
    first.enter_context(folder_lock(tmp_path))
    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(RunDirLockedError), folder_lock(tmp_path):
        raise AssertionError("it has two owners")
    monkeypatch.undo()
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(20.0)
    with folder_lock(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with (
        pytest.raises(RunFolderError, match="refused: it is a folder") as caught,
        folder_lock(tmp_path),
    ):
        raise AssertionError("it is locked")
    assert caught.value.path == str(tmp_path / "lock")


def test_failed_start_releases_the_folder(tmp_path: Path) -> None:
    first = transport_in(tmp_path / "data")
    bad = FlaskFSTransport({"data_dir": str(tmp_path / "data"), "host": "0.0.0.0"}, tmp_path)
    with pytest.raises(Exception, match="choose a secret"):
        bad.master_end().open(listener())
    first.master_end().open(listener())
    for transport in (first, bad):
        transport.close()


def test_lock_of_a_dead_process_blocks_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    subprocess.run([sys.executable, "-c", DIE_WITH_THE_LOCK, str(folder)], check=True)
    assert (folder / "lock").is_file()
    assert (folder / "lock").stat().st_mode & 0o777 == 0o600
    transport = transport_in(folder)
    transport.master_end().open(listener())
    transport.close()
