"""Buffers that delete the files of removed rows."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import ConfigError, ProtocolError, SchemaMismatchError
from dingsdk.worker import AdvancedReplayBuffer
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from tools.os_calls import failing_calls


def make(root: Path, capacity: int = 3, **cfg: Any) -> NaiveReplayBuffer:
    tracking = {"enable_track_used_data": True, "data_root": str(root)}
    return NaiveReplayBuffer({"replay_buffer_size": capacity, **tracking, **cfg})


def rows(root: Path, *names: str) -> list[dict[str, Any]]:
    for name in names:
        (root / name).write_bytes(b"payload")
    return [{"data_id": name, "reward": 1.0} for name in names]


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_files_are_deleted_with_the_last_row_that_names_them(tmp_path: Path) -> None:
    with make(tmp_path) as buffer:
        buffer.push(rows(tmp_path, "a", "b", "a"), 0)
        buffer.push(rows(tmp_path, "c")[0], 0)
        assert files(tmp_path) == ["a", "b", "c"]  # the third row names a as well
        buffer.push(rows(tmp_path, "d", "e"), 0)
        assert files(tmp_path) == ["c", "d", "e"]
        buffer.clear()
        assert files(tmp_path) == []
        buffer.push(rows(tmp_path, "f"), 0)
    assert files(tmp_path) == []


def test_files_of_rows_overwritten_within_one_push_are_deleted(tmp_path: Path) -> None:
    buffer = make(tmp_path, capacity=2)
    buffer.push(rows(tmp_path, "a", "b", "c", "d"), 0)
    assert files(tmp_path) == ["c", "d"]


BAD = [
    *[{"data_id": data_id} for data_id in (None, True, 1.5, "../x", "a/b", "..", "", "a" * 65)],
    {"reward": 1.0},
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_rows_that_name_no_file_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    buffer = make(tmp_path)
    buffer.push(rows(tmp_path, "a"), 0)
    with pytest.raises((SchemaMismatchError, ProtocolError)):
        buffer.push([*rows(tmp_path, "b"), bad], 0)
    assert buffer.count() == 1
    assert files(tmp_path) == ["a", "b"]


def test_a_symbolic_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"data")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "precious")
    buffer = make(root)
    buffer.push({"data_id": "a"}, 0)
    buffer.clear()
    assert files(tmp_path) == ["precious", "root"]
    assert files(root) == []


def test_a_file_that_cannot_be_deleted_is_named_and_others_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = make(tmp_path, capacity=4)
    buffer.push(rows(tmp_path, "a", "b", "c"), 0)
    buffer.push({"data_id": "gone", "reward": 1.0}, 0)
    with failing_calls(("unlink",), 1, errno.EIO):
        buffer.clear()
    (stays,) = files(tmp_path)
    assert [each for each in caplog.messages if f"used data {stays} stays" in each]
    assert len(caplog.messages) == 1


def test_rows_of_a_loaded_state_are_tracked_instead_of_the_old_ones(tmp_path: Path) -> None:
    buffer, other = make(tmp_path), make(tmp_path)
    buffer.push(rows(tmp_path, "a", "b"), 0)
    state = buffer.state_dict()
    other.push(rows(tmp_path, "b", "c"), 0)
    other.load_state_dict(state)
    assert files(tmp_path) == ["a", "b"]
    other.clear()
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_tracking_needs_the_folder_of_the_files(kind: Any) -> None:
    with pytest.raises(ConfigError, match="data_root"):
        kind({"enable_track_used_data": True})


def test_the_file_of_a_used_up_row_exists_when_its_sample_is_returned(tmp_path: Path) -> None:
    tracking = {"enable_track_used_data": True, "data_root": str(tmp_path)}
    with AdvancedReplayBuffer({"replay_buffer_size": 8, "max_use": 1, **tracking}) as buffer:
        buffer.push(rows(tmp_path, "a", "b", "c"), 0)
        read = []
        while buffer.count():
            (row,) = buffer.sample(1, 0) or []
            read.append((tmp_path / row["data_id"]).read_bytes())
        assert read == [b"payload"] * 3
        assert len(files(tmp_path)) == 1  # the file of the last sample
    assert files(tmp_path) == []


def test_another_thread_that_uses_up_rows_does_not_delete_files_of_this_one(tmp_path: Path) -> None:
    tracking = {"enable_track_used_data": True, "data_root": str(tmp_path)}
    with AdvancedReplayBuffer({"replay_buffer_size": 8, "max_use": 1, **tracking}) as buffer:
        buffer.push(rows(tmp_path, "a", "b", "c", "d"), 0)
        (row,) = buffer.sample(1, 0) or []
        other = threading.Thread(target=lambda: [buffer.sample(1, 0) for _ in range(2)])
        other.start()
        other.join()
        assert row["data_id"] in files(tmp_path)
        assert len(files(tmp_path)) == 3
