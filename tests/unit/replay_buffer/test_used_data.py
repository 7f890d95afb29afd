"""UsedData deletes the files of removed rows, but not while they are leased."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import DataMissingError, ProtocolError, SchemaMismatchError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.storage import Rows
from dingsdk.worker.replay_buffer.used_data import _RETRY_S, UsedData, UsedDataStats
from tools.os_calls import failing_calls


def rows_of(root: Path, *ids: Any) -> list[dict[str, Any]]:
    """Create files, and return rows that name them."""
    for data_id in ids:
        (root / str(data_id)).write_bytes(b"data")
    return [{"data_id": data_id} for data_id in ids]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_file_is_deleted_with_the_last_row_that_names_it(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows = rows_of(tmp_path, "a", "b", "a")
    used.on_insert(rows)
    used.on_remove(rows[:2], "overwritten")
    assert names(tmp_path) == ["a"]
    used.on_remove(rows[2:], "stale")
    assert names(tmp_path) == []
    assert used.stats() == UsedDataStats(tracked=0, leased=0, deleted=2, missing=0, pending=0)


def test_files_of_used_up_rows_stay_until_the_thread_uses_up_more(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows = rows_of(tmp_path, "a", "b", "c", "d")
    used.on_insert(rows)
    used.on_remove(rows[:1], "used_up")
    other = threading.Thread(target=used.on_remove, args=(rows[1:2], "used_up"))
    other.start()
    other.join()
    with used.lease(["a"]):
        used.on_remove(rows[2:3], "used_up")
        assert names(tmp_path) == ["a", "b", "c", "d"]
    assert names(tmp_path) == ["b", "c", "d"]
    used.on_close()
    assert names(tmp_path) == ["d"]


def test_columns_name_files_by_number(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows_of(tmp_path, 7, 8, 900)
    batch = SampleBatch({"data_id": np.array([7, 8, 7, 900]), "row": np.arange(4)})
    used.on_insert(batch)
    used.on_remove(batch[:2], "overwritten")
    assert names(tmp_path) == ["7", "900"]
    used.on_remove([{"data_id": 7}, {"data_id": np.int64(900)}], "cleared")
    assert names(tmp_path) == []


def test_the_file_of_an_id_that_is_stored_twice_stays(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows = rows_of(tmp_path, "a")
    used.on_insert(rows)
    used.on_insert(rows)
    used.on_remove(rows, "overwritten")
    assert names(tmp_path) == ["a"]


def test_files_of_rows_that_were_never_stored_stay(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    used.on_remove(rows_of(tmp_path, "a"), "cleared")
    assert names(tmp_path) == ["a"]


def test_leased_files_stay_until_the_last_release(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows = rows_of(tmp_path, "a", "b")
    used.on_insert(rows)
    first, second = used.lease(["a", "a"]), used.lease(["a", "b"])
    used.on_remove(rows, "overwritten")
    assert names(tmp_path) == ["a", "b"]
    second.release()
    second.release()
    assert names(tmp_path) == ["a"]
    third = used.lease(["a"])
    with first, third as held:
        assert held is third
        first.release()
        assert names(tmp_path) == ["a"]
    assert names(tmp_path) == []
    assert used.stats().leased == 0


def test_deleted_files_cannot_be_leased(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    rows = rows_of(tmp_path, "a", "b")
    used.on_insert(rows)
    used.on_remove(rows[:1], "stale")
    with pytest.raises(DataMissingError) as caught:
        used.lease(["b", "a"])
    assert caught.value.data_id == "a"
    assert used.stats().leased == 0
    used.on_remove(rows[1:], "stale")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "data_id",
    ["../x", "/etc/passwd", "a/b", "a\0b", "..", ".", "", "..\\x", "a" * 65, "CON", "x; touch P"],
)
def test_ids_that_are_not_file_names_are_refused(tmp_path: Path, data_id: str) -> None:
    (tmp_path / "x").write_bytes(b"outside")
    root = tmp_path / "root"
    root.mkdir()
    used = UsedData(root)
    for call in (used.check, used.on_insert, lambda rows: used.on_remove(rows, "cleared")):
        with pytest.raises(ProtocolError):
            call([{"data_id": data_id}])
    with pytest.raises(ProtocolError):
        used.lease([data_id])
    assert names(tmp_path) == ["root", "x"]
    assert used.stats().tracked == 0


@pytest.mark.parametrize(
    "rows",
    [
        [{"data_id": "a"}, {}],
        [{"data_id": None}],
        [{"data_id": True}],
        [{"data_id": 1.5}],
        ["a"],
        SampleBatch({"x": np.zeros(2)}),
        SampleBatch({"data_id": np.zeros(2)}),
        SampleBatch({"data_id": np.zeros((2, 1), np.int64)}),
        SampleBatch({"data_id": {"a": np.zeros(2, np.int64)}}),
    ],
    ids=repr,
)
def test_rows_without_an_id_are_refused(tmp_path: Path, rows: Rows) -> None:
    used = UsedData(tmp_path)
    for call in (used.check, used.on_insert):
        with pytest.raises(SchemaMismatchError) as caught:
            call(rows)
        assert caught.value.key == "data_id"
    assert used.stats().tracked == 0


def test_row_without_an_id_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"data_id of row 1") as caught:
        UsedData(tmp_path).check([{"data_id": "a"}, {}])
    assert (caught.value.facts["row"], caught.value.facts["found"]) == (1, "none")


def test_a_symbolic_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "precious").write_bytes(b"data")
    (root / "a").symlink_to(tmp_path / "precious")
    used = UsedData(root)
    used.on_insert([{"data_id": "a"}])
    used.on_remove([{"data_id": "a"}], "cleared")
    assert names(tmp_path) == ["precious", "root"]
    assert names(root) == []


def test_a_file_that_is_already_missing_is_counted(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    used.on_insert([{"data_id": "a"}])
    used.on_remove([{"data_id": "a"}], "cleared")
    assert (used.stats().missing, used.stats().pending) == (1, 0)


def test_a_failed_deletion_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    used = UsedData(tmp_path, clock=lambda: now[0])
    folder = tmp_path / "a"
    folder.mkdir()  # unlink refuses it
    rows = [{"data_id": "a"}, *rows_of(tmp_path, "b", "c")]
    used.on_insert(rows)
    with caplog.at_level(logging.WARNING):
        used.on_remove(rows[:2], "overwritten")
    assert "1 files" in caplog.text
    assert used.stats().pending == 1
    folder.rmdir()
    folder.write_bytes(b"")
    used.on_remove(rows[2:], "overwritten")
    assert names(tmp_path) == ["a"]  # too early to try again
    now[0] += 10.0
    used.on_remove([], "overwritten")
    assert names(tmp_path) == []
    assert used.stats() == UsedDataStats(tracked=0, leased=0, deleted=3, missing=0, pending=0)


@pytest.mark.parametrize(
    ("call", "code", "pending"),
    [("unlink", errno.EIO, 1), ("unlink", errno.EPERM, 1), ("open", errno.EMFILE, 3)],
)
def test_files_that_a_failing_disk_kept_are_deleted_at_the_next_try(
    tmp_path: Path, call: str, code: int, pending: int
) -> None:
    now = [0.0]
    used = UsedData(tmp_path, clock=lambda: now[0])
    rows = rows_of(tmp_path, "a", "b", "c")
    used.on_insert(rows)
    with failing_calls((call,), 1, code):
        used.on_remove(rows, "overwritten")
    stats = used.stats()
    assert (stats.pending, stats.deleted, stats.missing) == (pending, 3 - pending, 0)
    assert len(names(tmp_path)) == pending
    now[0] = _RETRY_S
    used.on_remove([], "overwritten")
    assert names(tmp_path) == []
    assert used.stats() == UsedDataStats(tracked=0, leased=0, deleted=3, missing=0, pending=0)


def test_close_tries_again_and_keeps_files_of_rows_pushed_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    used = UsedData(root)  # there is no such folder yet
    rows = [{"data_id": "a"}, {"data_id": "b"}]
    used.on_insert(rows)
    used.on_remove(rows, "cleared")
    assert used.stats().pending == 2
    root.mkdir()
    rows_of(root, "a", "b")
    used.on_insert(rows[:1])
    used.on_close()
    used.on_close()
    assert names(root) == ["a"]
    assert used.stats().pending == 0


def test_files_are_deleted_when_rows_leave_a_buffer(tmp_path: Path) -> None:
    used = UsedData(tmp_path)
    with NaiveReplayBuffer({"replay_buffer_size": 3}) as buffer:
        buffer.add_listener(used)
        for number in range(10):
            buffer.push(rows_of(tmp_path, f"id{number}"), 0)
        assert names(tmp_path) == ["id7", "id8", "id9"]
        buffer.clear()
        assert names(tmp_path) == []


def test_leased_files_exist_while_their_rows_are_overwritten(tmp_path: Path) -> None:
    """Readers lease the files that they sample and can read all; in the end all are deleted."""
    used = UsedData(tmp_path)
    buffer = NaiveReplayBuffer({"replay_buffer_size": 8})
    buffer.add_listener(used)
    done, read, gone, problems = threading.Event(), [0], [0], []

    def push_on() -> None:
        number = 0
        while not done.is_set():
            number += 1
            buffer.push(rows_of(tmp_path, f"id{number}"), 0)

    def read_on() -> None:
        while not done.is_set():
            batch = buffer.sample(4, 0)
            ids = [row["data_id"] for row in batch or ()]
            try:
                lease = used.lease(ids)
            except DataMissingError:
                gone[0] += 1
                continue
            with lease:
                for data_id in ids:
                    try:
                        (tmp_path / data_id).read_bytes()
                        read[0] += 1
                    except FileNotFoundError as error:
                        problems.append(error)
            if read[0] > 2000:
                done.set()

    threads = [threading.Thread(target=each) for each in (push_on, read_on, read_on)]
    for thread in threads:
        thread.start()
    done.wait(10.0)
    done.set()
    for thread in threads:
        thread.join(10.0)
    assert problems == []
    assert read[0] > 100
    buffer.close()
    assert names(tmp_path) == []
    assert used.stats().tracked == used.stats().leased == 0
