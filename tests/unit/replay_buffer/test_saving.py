"""Saving rows in pieces: which files are written again, and pushes during a save."""

from __future__ import annotations

import fcntl
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    RunFolderError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer
from dingsdk.worker.replay_buffer.persistence import SavedRows, save
from dingsdk.worker.replay_buffer.state import rows_of
from tools.os_calls import recorded_writes

from .saved_rows import (
    SEGMENT,
    Disturbed,
    full,
    loaded,
    make_buffer,
    numbers,
    push,
    segment_files,
)

# What is written again ------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 9, 45])
@pytest.mark.parametrize("before", [16, 37, 61])
def test_saving_again_writes_only_what_is_new(tmp_path: Path, before: int, more: int) -> None:
    buffer = make_buffer()
    push(buffer, before)
    save(tmp_path, buffer, SEGMENT)
    old = segment_files(tmp_path)
    push(buffer, more)
    save(tmp_path, buffer, SEGMENT)
    new = segment_files(tmp_path)
    assert loaded(tmp_path) == full(buffer)
    first = full(buffer)[0] if full(buffer) else 0
    for start, inode in old.items():
        end = (start // SEGMENT + 1) * SEGMENT
        if first < end <= before or (more == 0):
            assert new[start] == inode
    # Files of removed rows and of rewritten segments are deleted.
    assert len(list(tmp_path.iterdir())) == len(new) + 2
    assert all(start // SEGMENT >= first // SEGMENT for start in new)


def test_rows_of_another_buffer_replace_all_segments(tmp_path: Path) -> None:
    one, other = make_buffer(), make_buffer()
    push(one, 30)
    other.push(numbers(1000, 30), 0)
    save(tmp_path, one, SEGMENT)
    save(tmp_path, other, SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1030))
    save(tmp_path, one, SEGMENT)
    assert loaded(tmp_path) == list(range(30))


def test_rows_of_a_loaded_state_replace_all_segments(tmp_path: Path) -> None:
    buffer, other = make_buffer(), make_buffer()
    push(buffer, 40)
    save(tmp_path, buffer, SEGMENT)
    other.push(numbers(1000, 40), 0)
    buffer.load_state_dict(other.state_dict())
    buffer._contents.pushed -= 40
    save(tmp_path, buffer, SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1040))


def test_a_state_loaded_during_a_save_is_saved(tmp_path: Path) -> None:
    buffer, other = DisturbedNaive({"replay_buffer_size": 40}), make_buffer()
    push(buffer, 40)
    other.push(numbers(1000, 40), 0)

    def load_state() -> None:
        buffer.load_state_dict(state)

    state = other.state_dict()
    buffer.before[3] = load_state
    save(tmp_path, buffer, SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1040))


def test_damaged_segments_are_written_again(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 40)
    save(tmp_path, buffer, SEGMENT)
    paths = sorted(tmp_path.glob("rows-*"))
    paths[0].unlink()
    paths[3].write_bytes(b"short")
    save(tmp_path, buffer, SEGMENT)
    assert loaded(tmp_path) == full(buffer)
    (tmp_path / "manifest.json").write_text("{")
    save(tmp_path, buffer, SEGMENT)
    assert loaded(tmp_path) == full(buffer)
    assert len(list(tmp_path.iterdir())) == 5 + 2


def test_error_for_a_row_that_cannot_be_saved_says_its_age(tmp_path: Path) -> None:
    buffer = make_buffer()
    for number in range(40):
        buffer.push({"number": number, "text": object() if number == 29 else "x"}, 0)
    with pytest.raises(SchemaMismatchError, match="row 29 cannot be saved") as caught:
        save(tmp_path, buffer, SEGMENT)  # in the middle of a later segment
    assert (caught.value.row, caught.value.key) == (29, "text")


def test_a_save_has_the_latest_metadata_and_no_removed_rows(
    tmp_path: Path,
) -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 40, "seed": 0, "max_use": 2})
    push(buffer, 35)
    push(buffer, 35)
    save(tmp_path, buffer, SEGMENT)
    used = {40, 50, 69}
    for number in used:
        for _ in range(2):
            age = number - 30 - sum(other < number for other in used if gone(buffer, other))
            buffer.sample(1, 0, slice(age, age + 1))
    sample = buffer.sample(1, 0, slice(0, 1))
    assert sample is not None
    info = {key: sample.columns[key] for key in ("replay_unique_id", "replay_buffer_idx")}
    buffer.update({**info, "priority": [7.0]})
    save(tmp_path, buffer, SEGMENT)
    expected = [number for number in range(30, 70) if number not in used]
    assert loaded(tmp_path) == expected
    found = np.concatenate([facts["priority"] for _, facts in SavedRows(tmp_path)])
    assert found == pytest.approx([7.00001] + [1.0] * 36)
    uses = np.concatenate([facts["use"] for _, facts in SavedRows(tmp_path)])
    assert uses.tolist() == [1] + [0] * 36


def gone(buffer: AdvancedReplayBuffer, number: int) -> bool:
    where = np.array([number % 40])
    return bool(buffer._contents.metadata.living(where).size == 0)  # type: ignore[union-attr]


def test_saving_and_loading_need_memory_for_a_few_segments(tmp_path: Path) -> None:
    buffer = make_buffer(4096)
    buffer.push(SampleBatch({"number": np.zeros((4096, 1024))}), 0)  # 32 MiB
    tracemalloc.start()
    try:
        save(tmp_path, buffer, 64)
        rows = sum(len(rows) for rows, _ in SavedRows(tmp_path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 4096
    assert peak < 4 << 20


# While others push ----------------------------------------------------------------------------


class DisturbedNaive(Disturbed, NaiveReplayBuffer):
    """A plain buffer that is changed just before a snapshot."""


@pytest.mark.usefixtures("random_removers")
@pytest.mark.parametrize("remover", ["fifo", "random"])
@pytest.mark.parametrize("storage", ["array", "object"])
@pytest.mark.parametrize("rows_each", [0, 5, 100])
def test_a_save_has_the_rows_of_the_last_snapshot(
    tmp_path: Path, rows_each: int, storage: str, remover: str
) -> None:
    parts = {"remover": {"type": remover}, "storage": {"type": storage}}
    buffer = DisturbedNaive({"replay_buffer_size": 40, "seed": 0, **parts})
    push(buffer, 30)
    for _ in range(3):
        buffer.before[0] = lambda: push(buffer, rows_each)
        save(tmp_path, buffer, SEGMENT)
        buffer.before.clear()
        assert loaded(tmp_path) == [row["number"] for row in rows_of(buffer.state_dict()["data"])]
        same = NaiveReplayBuffer({"replay_buffer_size": 40, "seed": 1, **parts})
        same.resume_data(str(tmp_path))
        drawn = [[row["number"] for row in each.sample(8, 0) or ()] for each in (same, buffer)]
        assert drawn[0] == drawn[1] != []


@pytest.mark.usefixtures("random_removers")
def test_pushes_wait_for_the_copy_of_one_segment_whatever_the_remover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = DisturbedNaive({"replay_buffer_size": 400, "remover": {"type": "random"}})
    push(buffer, 400)
    buffer.before[0] = lambda: push(buffer, 3)
    storage, copied = buffer._contents.storage, list[int]()
    assert storage is not None
    take = storage.take

    def recorded(where: Any) -> Any:
        rows = take(where)
        copied.append(len(rows))
        return rows

    monkeypatch.setattr(storage, "take", recorded)
    save(tmp_path, buffer, SEGMENT)
    # The first copy only estimates the size of a row. Rows of one push are copied together.
    assert max(copied[1:]) <= SEGMENT + 2


def test_two_saves_at_once_are_refused(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError) as caught:
            save(tmp_path, buffer)
    finally:
        os.close(descriptor)
    assert caught.value.path == str(tmp_path)
    save(tmp_path, buffer)
    assert loaded(tmp_path) == list(range(10))


@pytest.mark.parametrize("name", ["a", "7", "²"])
def test_columns_that_cannot_be_written_are_named(tmp_path: Path, name: str) -> None:
    column: Any = np.zeros(2)
    for _ in range(40):
        column = {"a": column}
    with NaiveReplayBuffer({"replay_buffer_size": 4}) as buffer:
        buffer.push(SampleBatch({name: column}), 0)
        with pytest.raises(SchemaMismatchError, match="expected at most 32 levels") as caught:
            save(tmp_path, buffer)
    assert caught.value.key.startswith(f"{name}.a.a.")


def test_a_save_is_on_disk_before_its_manifest_names_it(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 40)
    with recorded_writes() as log:
        save(tmp_path, buffer, SEGMENT)
    manifest = tmp_path / "manifest.json"
    assert log.is_durable(manifest)
    named = next(i for i, call in enumerate(log.calls) if call[-1] == str(manifest))
    before = log.calls[:named]
    files = [path for path in tmp_path.iterdir() if path != manifest]
    assert len(files) > 2
    for path in files:
        is_named = next(i for i, call in enumerate(before) if call[-1] == str(path))
        assert ("sync", str(path)) in before[is_named + 1 :] or log.is_durable(path)
    last_file = max(i for i, call in enumerate(before) if call[0] == "rename")
    assert ("sync", str(tmp_path)) in before[last_file + 1 :]
