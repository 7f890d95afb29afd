"""Saving rows piece by piece: what is written again, and what others do meanwhile."""

from __future__ import annotations

import fcntl
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import BufferClosedError, RunFolderError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.keeping.loading import load
from dingsdk.worker.replay_buffer.keeping.row_reader import RowReader
from dingsdk.worker.replay_buffer.keeping.saving import save
from dingsdk.worker.replay_buffer.remover import Where

from .saved_rows import SEGMENT, full, loaded, make_buffer, numbers, push, segment_files

# What is written again ------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1, 9, 45])
@pytest.mark.parametrize("before", [0, 16, 37, 61])
def test_saving_again_writes_only_what_is_new(tmp_path: Path, before: int, more: int) -> None:
    buffer = make_buffer()
    reader = RowReader(buffer)
    push(buffer, before)
    save(tmp_path, reader, SEGMENT)
    old = segment_files(tmp_path)
    push(buffer, more)
    save(tmp_path, reader, SEGMENT)
    new = segment_files(tmp_path)
    assert loaded(tmp_path) == full(buffer)
    first = full(buffer)[0] if full(buffer) else 0
    for start, inodes in old.items():
        end = (start // SEGMENT + 1) * SEGMENT
        if first < end <= before or (more == 0):
            assert new[start] == inodes
    # Nothing is left of rows that are gone, or of segments that were written anew.
    assert len(list(tmp_path.iterdir())) == 2 * len(new) + 1
    assert all(start // SEGMENT >= first // SEGMENT for start in new)


def test_a_history_of_saves_is_always_the_buffer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    buffer = make_buffer()
    reader = RowReader(buffer)
    for _ in range(25):
        if rng.random() < 0.1:
            buffer.clear()
        push(buffer, int(rng.integers(0, 60)))
        save(tmp_path, reader, SEGMENT)
        assert loaded(tmp_path) == full(buffer)


def test_another_history_is_written_anew(tmp_path: Path) -> None:
    one, other = make_buffer(), make_buffer()
    push(one, 30)
    other.push(numbers(1000, 30), 0)
    save(tmp_path, RowReader(one), SEGMENT)
    save(tmp_path, RowReader(other), SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1030))
    save(tmp_path, RowReader(one), SEGMENT)
    assert loaded(tmp_path) == list(range(30))


def test_rows_of_a_loaded_state_are_another_history(tmp_path: Path) -> None:
    """Push indices may come again: a state can hold rows that had left, which never count."""
    buffer, other = make_buffer(), make_buffer()
    reader = RowReader(buffer)
    push(buffer, 40)
    save(tmp_path, reader, SEGMENT)
    other.push(numbers(1000, 40), 0)
    buffer.load_state_dict(other.state_dict())
    buffer._pushed -= 40
    save(tmp_path, reader, SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1040))


def test_a_state_loaded_meanwhile_is_what_is_saved(tmp_path: Path) -> None:
    buffer, other = make_buffer(), make_buffer()
    push(buffer, 40)
    other.push(numbers(1000, 40), 0)

    class Loading(RowReader):
        looks = 0

        def hold(self) -> Any:
            self.looks += 1
            if self.looks == 3:
                buffer.load_state_dict(other.state_dict())
            return super().hold()

    save(tmp_path, Loading(buffer), SEGMENT)
    assert loaded(tmp_path) == list(range(1000, 1040))


def test_damaged_segments_are_written_again(tmp_path: Path) -> None:
    buffer = make_buffer()
    reader = RowReader(buffer)
    push(buffer, 40)
    save(tmp_path, reader, SEGMENT)
    paths = sorted(tmp_path.glob("rows-*"))
    paths[0].unlink()
    paths[3].write_bytes(b"short")
    save(tmp_path, reader, SEGMENT)
    assert loaded(tmp_path) == full(buffer)
    (tmp_path / "manifest.json").write_text("{")
    save(tmp_path, reader, SEGMENT)
    assert loaded(tmp_path) == full(buffer)
    assert len(list(tmp_path.iterdir())) == 2 * 5 + 1


def test_other_columns_after_clearing_are_saved(tmp_path: Path) -> None:
    buffer = make_buffer()
    reader = RowReader(buffer)
    push(buffer, 20)
    save(tmp_path, reader, SEGMENT)
    buffer.clear()
    buffer.push(SampleBatch({"number": np.arange(5.0)}), 0)
    save(tmp_path, reader, SEGMENT)
    assert loaded(tmp_path) == list(range(5))
    rows, _ = next(iter(load(tmp_path)))
    assert isinstance(rows, SampleBatch)
    assert rows.columns["number"].dtype == np.float64


def test_objects_come_back_in_order_over_several_segments(tmp_path: Path) -> None:
    buffer = make_buffer()
    for number in range(50):
        buffer.push({"number": number, "text": "x"}, 0)
    save(tmp_path, RowReader(buffer), SEGMENT)
    assert loaded(tmp_path) == list(range(10, 50))
    assert len(list(tmp_path.glob("*.jsonl"))) == 6


def test_columns_of_all_kinds_come_back(tmp_path: Path) -> None:
    columns = {
        "f2": np.arange(10, dtype=np.float16),
        "c8": np.arange(10, dtype=np.complex64).reshape(10, 1),
        "big": np.arange(10, dtype=">i4"),
        "flag": np.arange(10) % 2 == 0,
        "none": np.zeros((10, 0, 3), np.uint8),
        "deep": {"er": {"u8": np.arange(40, dtype=np.uint64).reshape(10, 2, 2)}},
    }
    buffer = make_buffer()
    buffer.push(SampleBatch(columns), 0)
    save(tmp_path, RowReader(buffer), SEGMENT)
    pieces = [rows for rows, _ in load(tmp_path)]
    found = SampleBatch.concat([rows for rows in pieces if isinstance(rows, SampleBatch)])
    assert found == SampleBatch(columns)
    assert found.columns["c8"].dtype == np.complex64


class PartlyUsed(NaiveReplayBuffer):
    """A buffer in which every third row was used up."""

    def _living(self, where: Where) -> Where:
        assert not isinstance(where, slice)
        return where[where % 3 != 0]


@pytest.mark.parametrize("at_once_bytes", [0, 1 << 20])
def test_facts_are_those_of_the_end_and_rows_that_left_are_not_loaded(
    tmp_path: Path, at_once_bytes: int
) -> None:
    buffer = PartlyUsed({"replay_buffer_size": 40})
    priority = np.arange(40) / 8
    reader = RowReader(buffer, lambda where: {"priority": priority[where]})
    push(buffer, 35)
    push(buffer, 35)
    save(tmp_path, reader, SEGMENT)
    priority += 1.0
    save(tmp_path, reader, SEGMENT)
    expected = [number for number in range(30, 70) if (number % 40) % 3 != 0]
    assert loaded(tmp_path, at_once_bytes=at_once_bytes) == expected
    found = np.concatenate([facts["priority"] for _, facts in load(tmp_path)])
    assert found.tolist() == [(number % 40) / 8 + 1.0 for number in expected]


def test_memory_is_that_of_a_few_segments(tmp_path: Path) -> None:
    buffer = make_buffer(4096)
    buffer.push(SampleBatch({"number": np.zeros((4096, 1024))}), 0)  # 32 MiB
    tracemalloc.start()
    try:
        save(tmp_path, RowReader(buffer), 64)
        rows = sum(len(rows) for rows, _ in load(tmp_path, at_once_bytes=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 4096
    assert peak < 4 << 20


# While others push ----------------------------------------------------------------------------


class Pushing(RowReader):
    """Has somebody push before each look at the buffer, until it is held for good."""

    def __init__(self, buffer: NaiveReplayBuffer, rows_each: int) -> None:
        super().__init__(buffer)
        self.looks = 0
        self._rows_each = rows_each

    def hold(self) -> Any:
        self.looks += 1
        assert isinstance(self._buffer, NaiveReplayBuffer)
        push(self._buffer, self._rows_each)
        return super().hold()


@pytest.mark.parametrize("rows_each", [0, 1, 5, 8, 13, 100])
def test_what_is_saved_is_the_buffer_at_the_last_look(tmp_path: Path, rows_each: int) -> None:
    buffer = make_buffer()
    push(buffer, 40)
    reader = Pushing(buffer, rows_each)
    for _ in range(3):
        save(tmp_path, reader, SEGMENT)
        assert loaded(tmp_path) == full(buffer)
    # Whoever pushes more between two looks than is written at one is made to wait.
    assert reader.looks < 60


def test_rows_saved_beside_a_pushing_thread_are_a_full_run(tmp_path: Path) -> None:
    buffer = make_buffer(1000)
    push(buffer, 1000)
    reader, done = RowReader(buffer), threading.Event()

    def push_on() -> None:
        while not done.is_set():
            push(buffer, 37)

    thread = threading.Thread(target=push_on)
    thread.start()
    try:
        for _ in range(4):
            save(tmp_path, reader, 64)
            rows = loaded(tmp_path)
            assert rows == list(range(rows[0], rows[0] + 1000))
    finally:
        done.set()
        thread.join(10.0)


def test_columns_that_change_meanwhile_are_saved_in_the_end(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 40)

    class Changing(RowReader):
        looks = 0

        def hold(self) -> Any:
            self.looks += 1
            if self.looks == 3:
                buffer.clear()
                buffer.push(SampleBatch({"number": np.arange(9), "new": np.zeros(9)}), 0)
            return super().hold()

    save(tmp_path, Changing(buffer), SEGMENT)
    assert loaded(tmp_path) == list(range(9))
    # 40..48 lie in two segments of two columns.
    assert len(list(tmp_path.iterdir())) == 2 * 2 + 1


def test_a_closed_buffer_is_not_saved_and_the_old_rows_stay(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    save(tmp_path, RowReader(buffer))
    before = sorted(path.name for path in tmp_path.iterdir())
    buffer.close()
    with pytest.raises(BufferClosedError):
        save(tmp_path, RowReader(buffer))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_two_saves_at_once_are_refused(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError) as caught:
            save(tmp_path, RowReader(buffer))
    finally:
        os.close(descriptor)
    assert caught.value.path == str(tmp_path)
    save(tmp_path, RowReader(buffer))
    assert loaded(tmp_path) == list(range(10))
