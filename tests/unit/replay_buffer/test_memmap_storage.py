"""Columns on disk: recovered after a kill, refused if they are damaged."""

from __future__ import annotations

import errno
import json
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    CheckpointCorruptError,
    CheckpointVersionError,
    ConfigError,
    RunFolderError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.testing import open_files
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer import NaiveReplayBuffer, persistence
from dingsdk.worker.replay_buffer.remover import FifoRemover
from dingsdk.worker.replay_buffer.storage import memmap
from dingsdk.worker.replay_buffer.storage.mapped_folder import MappedFolder
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage
from tools.os_calls import failing_calls

from .pushing_process import CAPACITY, push, rows_of
from .small_disk import DISKS, on_a_disk_of_8_mib

CFGS: list[Any] = [
    pytest.param({}, id="plain"),
    pytest.param({"next_of": "obs"}, id="next_of"),
]


@contextmanager
def opened(path: Path, capacity: int = CAPACITY, **cfg: Any) -> Iterator[MemmapStorage]:
    storage = MemmapStorage({"path": str(path), **cfg}, capacity)
    try:
        yield storage
    finally:
        storage.close()


def filled(storage: MemmapStorage, rows: int) -> FifoRemover:
    remover = FifoRemover({}, storage.capacity)
    for start in range(0, rows, 10):
        push(storage, remover, start, min(10, rows - start))
    return remover


def found(storage: MemmapStorage) -> tuple[dict[str, int], FifoRemover]:
    state = storage.recovered()
    assert state is not None
    remover = FifoRemover({}, storage.capacity)
    remover.load_state_dict(state)
    return state, remover


@pytest.mark.parametrize("cfg", CFGS)
def test_rows_of_a_killed_process_are_recovered(tmp_path: Path, cfg: dict[str, Any]) -> None:
    command = [sys.executable, str(Path(__file__).parent / "pushing_process.py")]
    text = json.dumps({"path": str(tmp_path / "rows"), **cfg})
    with subprocess.Popen([*command, text], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(60)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    pushed = int([line for line in told if line.endswith(b"\n")][-1])
    with opened(tmp_path / "rows", **cfg, reopen=True) as storage:
        state, remover = found(storage)
        # The last push may be missing in the output; an interrupted one removes the oldest rows.
        assert pushed <= state["push_count"] <= pushed + 17
        newest = state["push_count"]
        assert newest > CAPACITY
        assert remover.count >= CAPACITY - 17
        assert storage.take(remover.oldest_first()) == rows_of(newest - remover.count, newest)
        push(storage, remover, newest, 30)
        newest += 30
        assert storage.take(remover.oldest_first()) == rows_of(newest - remover.count, newest)


@pytest.mark.parametrize("kind", ["naive", "episode"])
def test_a_folder_that_lost_its_header_is_refused_and_not_erased(tmp_path: Path, kind: str) -> None:
    def make(reopen: bool) -> Any:
        storage = {"type": "memmap", "path": str(tmp_path / "rows"), "reopen": reopen}
        return create_buffer({"type": kind, "replay_buffer_size": 4, "storage": storage})

    header = tmp_path / "rows" / "header.json"
    with make(reopen=False) as buffer:
        buffer.push([[{"x": 1.0}]] if kind == "episode" else {"x": 1.0}, 1)
    text = header.read_bytes()
    header.unlink()
    before = sorted(header.parent.iterdir())
    with pytest.raises(CheckpointCorruptError, match=r"header.json is missing"):
        make(reopen=True)
    with pytest.raises(ConfigError, match="rows of an earlier buffer"):
        make(reopen=False)
    assert sorted(header.parent.iterdir()) == before
    header.write_bytes(text)
    with make(reopen=True) as buffer:
        assert buffer.count() == 1


def test_loading_into_a_closed_buffer_is_refused(tmp_path: Path) -> None:
    storage = {"type": "memmap", "path": str(tmp_path / "rows")}
    buffer = NaiveReplayBuffer({"replay_buffer_size": 4, "storage": storage})
    buffer.push({"x": 1.0}, 1)
    buffer.save_data(str(tmp_path / "saved"))
    state, saved = buffer.state_dict(), persistence.load(tmp_path / "saved")
    buffer.close()
    for load in (
        lambda: buffer.load_state_dict(state),
        # As in resume_data and load_data, if another thread closes the buffer at this point.
        lambda: buffer.restore(saved.state, saved.count, saved.whole),
        lambda: buffer._continue_from(saved),
    ):
        with pytest.raises(BufferClosedError):
            load()


@pytest.mark.parametrize("cfg", CFGS)
@pytest.mark.parametrize("rows", [25, 95, 200, 260])
@pytest.mark.parametrize("cut", [1, 15, 120])
def test_an_interrupted_push_adds_no_rows_and_removes_only_those_it_replaced(
    tmp_path: Path, cfg: dict[str, Any], rows: int, cut: int
) -> None:
    with opened(tmp_path / "rows", 200, **cfg) as storage:
        remover = filled(storage, rows)
        before = remover.count
        where, _ = remover.allot(cut)
        storage.put(where, storage.accept(rows_of(rows, rows + cut)))
    expected = rows_of(rows - min(before, 200 - cut), rows)
    # The next pushes are another trajectory, at the positions of the interrupted one.
    number = rows + 1000
    for more in (0, 40, 250):
        with opened(tmp_path / "rows", 200, **cfg, reopen=True) as storage:
            state, remover = found(storage)
            assert state["push_count"] == (rows if number == rows + 1000 else number)
            for start in range(0, more, 10):
                push(storage, remover, number, 10)
                number += 10
                expected = SampleBatch.concat([expected, rows_of(number - 10, number)])[-200:]
                if start % 80 == 0:
                    assert storage.take(remover.oldest_first()) == expected
            assert storage.take(remover.oldest_first()) == expected


def test_rows_removed_by_several_interrupted_pushes_are_added_up(tmp_path: Path) -> None:
    with opened(tmp_path / "rows", 200) as storage:
        remover = filled(storage, 260)
        where, _ = remover.allot(15)
        storage.put(where, storage.accept(rows_of(260, 275)))
    with opened(tmp_path / "rows", 200, reopen=True) as storage:
        state, remover = found(storage)
        assert state["lost"] == 15
        where, _ = remover.allot(40)  # 15 positions are free
        storage.put(where, storage.accept(rows_of(260, 300)))
    with opened(tmp_path / "rows", 200, reopen=True) as storage:
        state, remover = found(storage)
        assert state["lost"] == 40
        assert storage.take(remover.oldest_first()) == rows_of(100, 260)
        push(storage, remover, 260, 10)
    with opened(tmp_path / "rows", 200, reopen=True) as storage:
        assert "lost" not in found(storage)[0]


@pytest.mark.parametrize("byte", [28, 30], ids=["another number", "no JSON"])
def test_a_damaged_record_falls_back_to_the_previous_one(tmp_path: Path, byte: int) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 50)
    cursor = tmp_path / "rows" / "cursor.bin"
    content = bytearray(cursor.read_bytes())
    newest = max((0, 4096), key=lambda at: int.from_bytes(content[at + 8 : at + 16], "little"))
    content[newest + byte] ^= 1
    cursor.write_bytes(content)
    with opened(tmp_path / "rows", reopen=True) as storage:
        state, remover = found(storage)
        assert state["push_count"] == 40
        assert storage.take(remover.oldest_first()) == rows_of(0, 40)


def damage_cursor(folder: Path) -> None:
    (folder / "cursor.bin").write_bytes(bytes(8192))


def cut_column(folder: Path) -> None:
    with (folder / "column-0001.bin").open("r+b") as file:
        file.truncate(10)


def damage_header(folder: Path) -> None:
    (folder / "header.json").write_text('{"format": "dingsdk-mapped-rows", "version": 1')


def lose_column(folder: Path) -> None:
    (folder / "column-0000.bin").unlink()


@pytest.mark.parametrize(
    "cursor",
    [
        {"tail": CAPACITY},
        {"tail": -1},
        {"valid_count": CAPACITY + 1},
        {"valid_count": -1},
        {"shift": CAPACITY},
        {"shift": -1},
    ],
    ids=str,
)
def test_an_impossible_cursor_is_refused(tmp_path: Path, cursor: dict[str, int]) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
        assert storage._folder is not None
        storage._folder.write_record({"tail": 20, "valid_count": 20, "shift": 0, **cursor})
    with (
        opened(tmp_path / "rows", reopen=True) as storage,
        pytest.raises(CheckpointCorruptError, match="its cursor is wrong"),
    ):
        storage.recovered()


def test_rows_of_episodes_stay_unchanged_if_a_file_cannot_grow(tmp_path: Path) -> None:
    """Each of the files fails to grow once."""
    for at in range(1, 99):
        with opened(tmp_path / f"rows{at}", capacity=8) as storage:
            storage.hold_episodes(3)
            storage.put(slice(0, 8), storage.accept(rows_of(0, 8)))
            with (
                failing_calls(("ftruncate",), at, errno.EPERM) as calls,
                pytest.raises(RunFolderError) if at < 5 else nullcontext(),
            ):
                storage.grow(20)
            if calls() < at:
                break
            assert storage.capacity == 8
            assert storage.take(slice(0, 8)) == rows_of(0, 8)
    assert storage.capacity == 20
    assert at == 5  # three columns and the marks grow


@pytest.mark.parametrize("column", [{"dtype": "|O8"}, {"dtype": "<U1"}, {"shape": [-1]}], ids=str)
def test_an_impossible_column_is_refused(tmp_path: Path, column: dict[str, Any]) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
        folder = storage._folder
        assert folder is not None
        header = folder.read_header()
        assert header is not None
        header["columns"][0].update(column)
        folder.write_header(header)
    with (
        opened(tmp_path / "rows", reopen=True) as storage,
        pytest.raises(CheckpointCorruptError, match=r"column \['obs', 'x'\]"),
    ):
        storage.recovered()


def link_column(folder: Path) -> None:
    column, elsewhere = folder / "column-0000.bin", folder.parent / "elsewhere"
    column.rename(elsewhere)
    column.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "damage", [damage_cursor, cut_column, damage_header, lose_column, link_column]
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Any) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
    damage(tmp_path / "rows")
    for _ in range(2):  # a refusal releases the lock
        with (
            opened(tmp_path / "rows", reopen=True) as storage,
            pytest.raises(CheckpointCorruptError),
        ):
            storage.recovered()


def test_a_changed_byte_of_a_column_is_not_detected(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
    with (tmp_path / "rows" / "column-0000.bin").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    with opened(tmp_path / "rows", reopen=True) as storage:
        positions = found(storage)[1].oldest_first()
        assert storage.take(positions[:1]) != rows_of(0, 1)
        assert storage.take(positions[1:]) == rows_of(1, 20)


def own_count(storage: MemmapStorage) -> int:
    return int(np.count_nonzero(storage._following._links < 0))  # type: ignore[union-attr]


@pytest.mark.parametrize(("step", "own"), [(1, 1), (10, 4)])
def test_next_observations_are_where_they_were_after_reopening(
    tmp_path: Path, step: int, own: int
) -> None:
    rows = SampleBatch({"obs": np.arange(4.0), "next_obs": np.arange(4.0) + step})
    with opened(tmp_path / "rows", 4, next_of="obs") as storage:
        storage.put(slice(0, 4), storage.accept(rows))
        storage.commit({"tail": 0, "valid_count": 4})
        assert own_count(storage) == own
    with opened(tmp_path / "rows", 4, next_of="obs", reopen=True) as storage:
        assert storage.recovered() is not None
        assert storage.take(slice(0, 4)) == rows
        assert own_count(storage) == own


@pytest.mark.parametrize("link", [np.iinfo(np.int32).min, -1, 0, CAPACITY])
def test_links_at_positions_without_a_row_are_ignored(tmp_path: Path, link: int) -> None:
    """A killed process may have left any value there."""
    with opened(tmp_path / "rows", next_of="obs") as storage:
        filled(storage, 20)
        own = own_count(storage)
    links = np.fromfile(tmp_path / "rows" / "links.bin", np.int32)
    links[20:] = link
    links.tofile(tmp_path / "rows" / "links.bin")
    with opened(tmp_path / "rows", next_of="obs", reopen=True) as storage:
        assert found(storage)[0]["push_count"] == 20
        assert storage.take(slice(0, 20)) == rows_of(0, 20)
        assert own_count(storage) == own


@pytest.mark.parametrize("link", [CAPACITY, -CAPACITY - 1])
def test_impossible_links_are_refused(tmp_path: Path, link: int) -> None:
    with opened(tmp_path / "rows", next_of="obs") as storage:
        filled(storage, 20)
    links = tmp_path / "rows" / "links.bin"
    links.write_bytes(np.full(CAPACITY, link, np.int32).tobytes())
    with (
        opened(tmp_path / "rows", next_of="obs", reopen=True) as storage,
        pytest.raises(CheckpointCorruptError, match="a link leads nowhere"),
    ):
        storage.recovered()


@pytest.mark.parametrize("changed", [{"capacity": 100}, {"next_of": "obs"}])
def test_reopening_with_other_settings_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
    with (
        opened(tmp_path / "rows", reopen=True, **changed) as storage,
        pytest.raises(CheckpointVersionError),
    ):
        storage.recovered()
    with opened(tmp_path / "rows", reopen=True) as storage:
        assert found(storage)[0]["push_count"] == 20
        with pytest.raises(SchemaMismatchError):
            storage.accept([{"id": 1}])


def test_a_folder_that_holds_rows_is_refused_unless_reopened(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
    with pytest.raises(ConfigError, match="reopen"):
        MemmapStorage({"path": str(tmp_path / "rows")}, CAPACITY)


def test_two_buffers_cannot_use_one_folder(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage, opened(tmp_path / "rows") as other:
        filled(storage, 20)
        with pytest.raises(ConfigError):
            other.accept(rows_of(0, 1))
        before = open_files(collect=True)
        for _ in range(3):
            with (
                pytest.raises(RunFolderError, match="in use"),
                opened(tmp_path / "rows", reopen=True) as third,
            ):
                third.recovered()
        assert open_files() == before
        assert storage.take(slice(0, 20)) == rows_of(0, 20)


def test_files_are_created_at_the_first_push_and_are_private(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage:
        assert list(tmp_path.iterdir()) == []
        filled(storage, 10)
        assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o700
        for file in (tmp_path / "rows").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_clear_drops_the_schema_and_deletes_the_files(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 10)
        storage.clear()
        storage.put(slice(0, 1), storage.accept([{"other": 1.0}]))
        assert storage.take(slice(0, 1)).columns["other"].tolist() == [1.0]
        storage.clear()
    assert list((tmp_path / "rows").iterdir()) == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_rows_that_were_not_recovered_can_be_cleared(tmp_path: Path, is_damaged: bool) -> None:
    with opened(tmp_path / "rows") as storage:
        filled(storage, 10)
    with opened(tmp_path / "rows", reopen=True) as storage:
        if is_damaged:
            damage_cursor(tmp_path / "rows")
            with pytest.raises(CheckpointCorruptError):
                storage.recovered()
        storage.clear()
        assert not MappedFolder.is_taken(tmp_path / "rows")
        storage.put(slice(0, 1), storage.accept([{"other": 1.0}]))
        assert storage.take(slice(0, 1)).columns["other"].tolist() == [1.0]


def test_clear_without_reopen_keeps_the_rows_of_another_storage(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as other:  # opened before the folder has rows
        with opened(tmp_path / "rows") as storage:
            filled(storage, 20)
        other.clear()
    with opened(tmp_path / "rows", reopen=True) as storage:
        assert found(storage)[0]["push_count"] == 20
        assert storage.take(slice(0, 20)) == rows_of(0, 20)


def test_a_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="path"):
        MemmapStorage({}, 10)


def test_rows_that_the_disk_cannot_hold_are_refused_at_the_push(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with opened(tmp_path / "rows", 10_000) as storage:
            with pytest.raises(StorageFullError):
                storage.accept(rows_of(0, 5))
            storage.put(slice(0, 1), storage.accept([{"small": 1.0}]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


FILL = """
import sys
import numpy as np
from dingsdk.data import SampleBatch
from dingsdk.errors import StorageFullError
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

storage = MemmapStorage({"path": sys.argv[1]}, 1_000_000)
pushed = 0
try:
    while True:
        rows = SampleBatch({"x": np.full((500, 1000), pushed, np.float32)})
        storage.put(slice(pushed, pushed + 500), storage.accept(rows))
        pushed += 500
except StorageFullError as error:
    print(error.reason, pushed, storage.take(slice(pushed - 1, pushed)).columns["x"][0, 0])
"""


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_fills_up_raises_an_error_and_no_signal(tmp_path: Path, disk: str) -> None:
    reason, pushed, last = on_a_disk_of_8_mib(tmp_path, FILL, disk).split()
    assert reason == "ENOSPC"
    assert 1500 <= int(pushed) <= 2000
    assert float(last) == int(pushed) - 500


def test_disk_space_is_reserved_for_many_pushes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def reserve(folder: MappedFolder, sizes: Mapping[str, int]) -> None:
        asked.append(sum(sizes.values()))
        plain(folder, sizes)

    plain = MappedFolder.reserve
    monkeypatch.setattr(MappedFolder, "reserve", reserve)
    with opened(tmp_path / "rows", 1000) as storage:
        filled(storage, 1000)
    assert len(asked) == 2  # for the columns, and for the cursor


def test_disk_space_is_reserved_wherever_the_rows_of_a_state_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memmap, "_STEP_BYTES", 0)
    with opened(tmp_path / "rows") as storage:
        storage.put(slice(50, 60), storage.accept(rows_of(0, 10)))
        assert storage._n_reserved == 60


def test_disk_space_is_reserved_in_addition_to_recovered_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memmap, "_STEP_BYTES", 0)
    with opened(tmp_path / "rows") as storage:
        filled(storage, 20)
    with opened(tmp_path / "rows", reopen=True) as storage:
        assert storage.recovered() is not None
        storage.accept(rows_of(20, 25))
        assert storage._n_reserved == 25
