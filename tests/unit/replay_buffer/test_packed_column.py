"""Compressed columns on disk: their size, damage, full disks and failing reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import DataCorruptError
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

from .small_disk import DISKS, on_a_disk_of_8_mib

CODECS = ["lz4", "zstd"]


@contextmanager
def opened(path: Path, capacity: int = 64, **cfg: Any) -> Iterator[MemmapStorage]:
    storage = MemmapStorage({"path": str(path), "compress": "lz4", **cfg}, capacity)
    try:
        yield storage
    finally:
        storage.close()


def games(steps: int) -> SampleBatch:
    """Return transitions of a game: a background, a few moving objects, and some noise."""
    rng = np.random.default_rng(0)
    screens = np.empty((steps + 4, 84, 84), np.uint8)
    screens[:] = np.linspace(40, 90, 84, dtype=np.uint8)[:, None]
    for number, screen in enumerate(screens):
        for thing in range(8):
            y, x = (number * (thing + 1)) % 76, (number * 3 + thing * 11) % 76
            screen[y : y + 8, x : x + 8] = rng.integers(0, 256, (8, 8))
    noisy = rng.random(screens.shape) < 0.01
    screens[noisy] = rng.integers(0, 256, int(noisy.sum()))
    stacks = np.stack([screens[i : i + steps + 1] for i in range(4)], axis=1)
    return SampleBatch(
        {
            "obs": stacks[:-1],
            "next_obs": stacks[1:],
            "action": rng.integers(0, 6, steps),
            "reward": rng.random(steps, np.float32),
            "done": np.arange(steps) % 200 == 199,
        }
    )


def disk_bytes(folder: Path) -> int:
    """Return the disk usage as ``du`` counts it."""
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir())


@pytest.mark.parametrize(
    ("compress", "next_of", "most"),
    [("lz4", None, 0.32), ("lz4", "obs", 0.18), ("zstd", None, 0.22), ("zstd", "obs", 0.13)],
)
def test_compressed_screens_need_a_part_of_their_size_on_disk(
    tmp_path: Path, compress: str, next_of: str | None, most: float
) -> None:
    rows = games(640)
    raw = sum(column.nbytes for column in rows.columns.values())
    with opened(tmp_path / "rows", 640, compress=compress, next_of=next_of) as storage:
        for start in range(0, 640, 8):
            batch = rows[start : start + 8]
            storage.put(slice(start, start + 8), storage.accept(batch))
        assert storage.take(np.arange(640)) == rows
        # This includes the spare space for the next push of eight rows.
        assert disk_bytes(tmp_path / "rows") < most * raw


@pytest.mark.parametrize("compress", CODECS)
@pytest.mark.parametrize("dtype", ["u1", "?", "i4", "f2", "f8", "c16"])
def test_rows_come_back_bit_by_bit_from_any_position(
    tmp_path: Path, compress: str, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (20, 16384), np.uint8)
    # Every other row compresses well. Rows of both kinds replace each other.
    noise[::2, 100:] = 0
    if dtype == "?":
        noise &= 1
    rows = noise.view(dtype).reshape(20, 2, -1)
    with opened(tmp_path / "rows", 7, compress=compress) as storage:
        kept: dict[int, Any] = {}
        for number, row in enumerate(rows):
            (where,) = np.asarray([[number % 7]])
            storage.put(where, storage.accept(SampleBatch({"x": row[None], "y": where})))
            kept[number % 7] = row
        for where in (np.asarray([[3, 0, 6], [6, 5, 3]]), np.arange(7), np.asarray([2])):
            taken = storage.take(where).columns
            assert taken["x"].shape == (*where.shape, *rows.shape[1:])
            assert taken["x"].dtype == rows.dtype
            expected = b"".join(kept[place].tobytes() for place in where.reshape(-1))
            assert taken["x"].tobytes() == expected
            taken["x"][...] = 1
        assert storage.take(slice(1, 4)).columns["x"].tobytes() == (
            b"".join(kept[place].tobytes() for place in (1, 2, 3))
        )


def test_small_columns_are_not_compressed(tmp_path: Path) -> None:
    with opened(tmp_path / "rows") as storage:
        rows = SampleBatch({"small": np.zeros((4, 2047), np.float32), "done": np.ones(4, bool)})
        storage.put(slice(0, 4), storage.accept(rows))
        files = sorted(file.name for file in (tmp_path / "rows").iterdir())
    assert files == ["column-0000.bin", "column-0001.bin", "cursor.bin", "header.json", "marks.bin"]


def noise(rows: int, seed: int = 0) -> SampleBatch:
    return SampleBatch({"x": np.random.default_rng(seed).integers(0, 256, (rows, 9000), np.uint8)})


def test_spare_space_is_held_while_the_storage_is_open(tmp_path: Path) -> None:
    spare = tmp_path / "rows" / "spare.bin"
    with opened(tmp_path / "rows") as storage:
        storage.put(slice(0, 8), storage.accept(noise(8)))
        held = spare.stat().st_blocks * 512
        assert held >= 8 * 3 * 4096
        storage.accept(noise(2))
        assert spare.stat().st_blocks * 512 == held
        storage.accept(noise(500))  # only as many as the capacity are stored
        assert spare.stat().st_size < 70 * 3 * 4096 + (64 << 10)
    assert not spare.exists()


def damage_bytes(folder: Path) -> None:
    with (folder / "column-0000.bin").open("r+b") as file:
        file.seek(2 * 12288)
        file.write(b"\xff" * 9000)


def tell_length(folder: Path, length: int, position: int = 2) -> None:
    lengths = np.memmap(folder / "lengths-0000.bin", np.int32, "r+")
    lengths[position] = length


@pytest.mark.parametrize("compress", CODECS)
@pytest.mark.parametrize("length", [None, 1 << 30, 20, 0, -5])
def test_a_damaged_row_is_refused_and_others_are_not(
    tmp_path: Path, compress: str, length: int | None
) -> None:
    rows = SampleBatch({"x": np.repeat(np.arange(8 * 90), 25).reshape(8, -1).astype(np.int32)})
    with opened(tmp_path / "rows", compress=compress) as storage:
        storage.put(slice(0, 8), storage.accept(rows))
        storage.commit({"tail": 8, "valid_count": 8})
    if length is None:
        damage_bytes(tmp_path / "rows")
    else:
        tell_length(tmp_path / "rows", length)
    with opened(tmp_path / "rows", compress=compress, reopen=True) as storage:
        assert storage.recovered() == {"tail": 8, "valid_count": 8}
        assert storage.take(np.asarray([0, 1, 3, 7])) == rows.take(np.asarray([0, 1, 3, 7]))
        with pytest.raises(DataCorruptError) as caught:
            storage.take(np.arange(8))
        assert caught.value.position == 2


def test_rows_with_their_own_next_observation_read_no_other_row(tmp_path: Path) -> None:
    rows = games(8)
    with opened(tmp_path / "rows", next_of="obs") as storage:
        storage.put(slice(0, 8), storage.accept(rows))
        # A process killed while it replaced the oldest row may leave this.
        tell_length(tmp_path / "rows", 0, position=0)
        assert storage.take(np.arange(1, 8)) == rows[1:]
        assert storage.take(slice(7, 8)) == rows[7:]
        with pytest.raises(DataCorruptError):
            storage.take(np.asarray([0]))


GROW = """
import os, sys
from pathlib import Path
import numpy as np
from dingsdk.data import SampleBatch
from dingsdk.errors import StorageFullError
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

def rows(number, n, least=0):
    x = np.random.default_rng(number).integers(least, 256, (n, 40000), np.uint8)
    return SampleBatch({"x": x, "id": np.arange(number, number + n)})

folder = Path(sys.argv[1])
storage = MemmapStorage({"path": str(folder), "compress": "lz4"}, 100)
for start in range(0, 100, 10):
    storage.put(slice(start, start + 10), storage.accept(rows(start, 10, least=255)))
with (folder.parent / "others").open("wb", buffering=0) as others:
    try:
        while True:
            others.write(bytes(4096))
    except OSError:
        pass
# Rows in their places that need ten times as much: the space for one push was held back.
storage.put(slice(0, 10), storage.accept(rows(1000, 10)))
free = os.statvfs(folder).f_bavail
for n in (10, 5):
    try:
        storage.accept(rows(2000, n))
        print("accepted", n)
    except StorageFullError as error:
        print(error.reason)
assert os.statvfs(folder).f_bavail >= free - 2  # nothing is kept of what was too little
assert storage.take(np.arange(10)) == rows(1000, 10)
assert all(storage.take(np.arange(s, s + 10)) == rows(s, 10, 255) for s in range(10, 100, 10))
(folder.parent / "others").unlink()
storage.put(slice(10, 20), storage.accept(rows(2000, 10)))
assert storage.take(np.arange(10, 20)) == rows(2000, 10)
storage.close()
print(*sorted(file.name for file in folder.iterdir()))
"""


@pytest.mark.parametrize("disk", DISKS)
def test_an_accepted_push_has_space_even_if_the_disk_fills_up(tmp_path: Path, disk: str) -> None:
    told = on_a_disk_of_8_mib(tmp_path, GROW, disk).split()
    assert told[:2] == ["ENOSPC", "ENOSPC"]
    assert "spare.bin" not in told


FILL = """
import sys
import numpy as np
from dingsdk.data import SampleBatch
from dingsdk.errors import StorageFullError
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

def rows(start):
    x = np.random.default_rng(start).integers(0, 256, (5, 40000), np.uint8)
    return SampleBatch({"obs": x[:-1], "next_obs": x[1:]})

storage = MemmapStorage({"path": sys.argv[1], "compress": "zstd", "next_of": "obs"}, 10_000)
pushed = 0
try:
    while True:
        storage.put(slice(pushed, pushed + 4), storage.accept(rows(pushed)))
        pushed += 4
except StorageFullError:
    for start in range(0, pushed, 4):
        assert storage.take(slice(start, start + 4)) == rows(start)
    print(pushed)
"""


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_fills_up_raises_an_error_and_no_row_is_lost(tmp_path: Path, disk: str) -> None:
    # 40,000 bytes are 10 pages; every fourth row also stores its own next observation.
    assert 110 <= int(on_a_disk_of_8_mib(tmp_path, FILL, disk)) <= 8 * 256 / 12.5
