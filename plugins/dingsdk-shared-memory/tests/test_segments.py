"""Segments of payloads: generations, dead writers, and what other processes can read."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dingsdk_shared_memory.segments import (
    ENTRY_BYTES,
    MOST_ENTRIES,
    Segments,
    _entry_at,
)

from dingsdk.errors import ClosedError, DataCorruptError, StorageFullError
from dingsdk.runtime import PrivateDir
from tests.fakes import Clock
from tools.os_calls import failing_calls

LARGE = 1 << 16


def opened(path: Path, clock: Clock | None = None) -> Segments:
    return Segments(PrivateDir(path), clock=clock or Clock())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Segments]:
    made = opened(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Segments]:
    made = opened(tmp_path / "s")
    yield made
    made.close()


def add(segments: Segments, name: str, frame: bytes) -> None:
    segments.add(name, [frame[:10], frame[10:]], len(frame))


def files(path: Path, kind: str = "seg") -> int:
    return len(list((path / "s").glob(f"*.{kind}")))


def test_frames_of_every_size_are_read_by_another_store(
    tmp_path: Path, writer: Segments, reader: Segments
) -> None:
    frames = {f"p{size}": bytes([size % 251]) * size for size in (1, 63, 64, 65, 4096, 16384)}
    for name, frame in frames.items():
        assert reader.read(name) is None
        add(writer, name, frame)
        assert reader.read(name) == frame
    for name, frame in frames.items():
        assert reader.read(name) == writer.read(name) == frame
    assert sorted(reader.ids()) == sorted(frames)
    places = [writer._index[name][4] for name in frames]
    steps = [after - before for before, after in itertools.pairwise(places)]
    assert steps == [64, 64, 64, 128, 4096]
    assert places[0] % 64 == 0
    assert files(tmp_path, "slot") == 0
    add(writer, "larger", bytes(16385))
    assert files(tmp_path, "slot") == 1


@pytest.mark.parametrize("size", [64, 16 << 10], ids=["entries run out", "bytes run out"])
def test_segment_is_reused_once_all_its_payloads_are_deleted(
    tmp_path: Path, writer: Segments, reader: Segments, size: int
) -> None:
    for index in range(3 * MOST_ENTRIES):
        frame = index.to_bytes(8, "little") * (size // 8)
        add(writer, f"p{index}", frame)
        assert reader.read(f"p{index}") == frame
        reader.delete(f"p{index}")
        assert reader.read(f"p{index}") is None
    assert files(tmp_path) == 1
    assert len(writer._index) <= MOST_ENTRIES  # entries of deleted payloads are removed
    assert reader._index == {}
    assert writer.ids() == reader.ids() == []


def test_late_deletion_does_not_affect_the_next_generation(
    writer: Segments, reader: Segments
) -> None:
    add(writer, "old", b"old")
    assert reader.read("old") == b"old"
    segment, number, *_ = reader._index["old"]
    writer.delete("old")
    own = writer._own
    assert own is not None
    own.begin_generation()
    writer._index.clear()
    add(writer, "new", b"new")

    segment.delete(number)  # the number is from the generation that the reader knows

    assert writer.read("new") == b"new"
    assert reader.read("new") == b"new"
    assert reader.read("old") is None


def test_segment_created_within_the_clock_tick_of_a_look_up_is_found(
    tmp_path: Path, writer: Segments, reader: Segments
) -> None:
    path = tmp_path / "s"
    add(writer, "a", b"a")
    now = time.time_ns()
    os.utime(path, ns=(now, now))
    assert reader.ids() == ["a"]
    with closing(opened(path)) as other:
        add(other, "b", b"b")
        os.utime(path, ns=(now, now))
        assert reader.has("b")


def test_uncounted_entry_of_a_dead_writer_is_not_seen(writer: Segments, reader: Segments) -> None:
    add(writer, "a", b"a")
    own = writer._own
    assert own is not None
    state = own.map[:64]
    add(writer, "b", b"b")
    own.map[:64] = state
    assert reader.ids() == ["a"]
    assert reader.read("b") is None


@pytest.mark.parametrize("size", [8, LARGE], ids=["in a segment", "in a slot"])
def test_damaged_entry_is_counted_and_reported_once_and_its_payload_never_read(
    tmp_path: Path,
    writer: Segments,
    reader: Segments,
    caplog: pytest.LogCaptureFixture,
    size: int,
) -> None:
    late = opened(tmp_path / "s")
    checked = ENTRY_BYTES - 8  # all bytes except the deletion mark
    for byte in range(checked):
        names = [f"a{byte}", f"p{byte}", f"z{byte}"]
        for name in names:
            add(writer, name, name.encode() * (size // 8))
        own = writer._own
        assert own is not None
        own.map[_entry_at(own.seen - 2) + byte] ^= 1

        assert reader.read(f"p{byte}") is None
        assert not writer.has(f"p{byte}")
        assert reader.damaged_count == byte + 1
        assert len(reader.ids()) == len(late.ids()) == 2
        for name in (f"a{byte}", f"z{byte}"):
            assert bytes(late.read(name) or b"") == name.encode() * (size // 8)
            late.delete(name)
    assert late.damaged_count == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"] * checked
    late.close()


@pytest.mark.parametrize("byte", range(8, 16))
def test_payloads_behind_a_damaged_header_are_found_again_after_the_next_one(
    writer: Segments, reader: Segments, byte: int
) -> None:
    add(writer, "a", b"a")
    own = writer._own
    assert own is not None
    own.map[byte] ^= 0x81
    assert reader.read("a") in (b"a", None)
    add(writer, "b", b"b")
    assert writer.read("b") == b"b"
    own.begin_generation()
    add(writer, "c", b"c")
    assert reader.read("c") == b"c"


def test_damaged_deletion_mark_keeps_the_payload(writer: Segments, reader: Segments) -> None:
    add(writer, "a", b"a")
    own = writer._own
    assert own is not None
    for bit in range(64):
        own.map[_entry_at(1) - 8 + bit // 8] ^= 1 << bit % 8
        assert reader.read("a") == b"a"
        own.map[_entry_at(1) - 8 + bit // 8] ^= 1 << bit % 8
    assert reader.damaged_count == 0


def test_orphans_are_swept_after_their_grace_and_dead_segments_with_the_last(
    tmp_path: Path,
) -> None:
    clock = Clock()
    dead, living, keeper = (
        opened(tmp_path / "s"),
        opened(tmp_path / "s"),
        opened(tmp_path / "s", clock),
    )
    add(dead, "a", b"a")
    add(dead, "b", b"b")
    add(living, "c", b"c")
    dead.close()

    assert keeper.sweep({"a", "c"}.__contains__, 10.0) == 0
    clock.now += 9.9
    assert keeper.sweep({"a", "c"}.__contains__, 10.0) == 0
    clock.now += 0.1
    assert keeper.sweep({"a", "c"}.__contains__, 10.0) == 1
    assert sorted(keeper.ids()) == ["a", "c"]
    assert files(tmp_path) == 2
    keeper.delete("a")
    keeper.delete("c")
    keeper.sweep(lambda name: True, 10.0)
    assert files(tmp_path) == 1  # the file of the living writer
    add(living, "d", b"d")
    assert keeper.read("d") == b"d"
    assert len(keeper._segments) == 1
    living.close()
    keeper.close()


def test_slot_is_reused_once_its_payload_is_deleted_and_not_viewed(
    tmp_path: Path, writer: Segments, reader: Segments
) -> None:
    views = []
    for index in range(6):
        size = LARGE - 1000 * index
        frame = bytes([index]) * size
        add(writer, f"p{index}", frame)
        view = reader.read(f"p{index}")
        assert isinstance(view, memoryview)
        assert view.readonly
        assert bytes(view) == bytes(writer.read(f"p{index}") or b"") == frame
        assert memoryview(writer.read(f"p{index}") or b"").readonly
        views += [view] if index == 1 else []
        reader.delete(f"p{index}")
        assert reader.read(f"p{index}") is None
        del view

    assert bytes(views[0]) == b"\1" * (LARGE - 1000)
    assert files(tmp_path, "slot") == 2
    views.clear()
    for index in range(6, 10):
        add(writer, f"p{index}", bytes(LARGE))
    assert files(tmp_path, "slot") == 4


@pytest.mark.parametrize("is_settled", [False, True])
def test_payloads_of_a_folder_that_was_removed_are_gone(
    tmp_path: Path, writer: Segments, reader: Segments, is_settled: bool
) -> None:
    add(writer, "a", b"a")
    changed_s = 0.0 if is_settled else time.time()
    os.utime(tmp_path / "s", (changed_s, changed_s))
    assert reader.ids() == ["a"]
    shutil.rmtree(tmp_path / "s")
    assert reader.ids() == []
    assert not reader.has("a")


@pytest.mark.parametrize("kind", ["seg", "slot"])
def test_file_without_room_is_removed(
    tmp_path: Path, writer: Segments, reader: Segments, kind: str
) -> None:
    size = 1 if kind == "seg" else LARGE
    failing = failing_calls(("posix_fallocate",), 1, errno.ENOSPC, persistent=True)
    with failing, pytest.raises(StorageFullError) as caught:
        add(writer, "a", bytes(size))
    assert caught.value.facts["reason"] == "ENOSPC"
    assert files(tmp_path, kind) == 0
    add(writer, "a", bytes(size))
    assert files(tmp_path, kind) == 1
    assert bytes(reader.read("a") or b"") == bytes(size)


@pytest.mark.parametrize("is_over", [False, True])
def test_writer_takes_another_lock_if_its_first_one_was_swept(
    tmp_path: Path,
    writer: Segments,
    reader: Segments,
    monkeypatch: pytest.MonkeyPatch,
    is_over: bool,
) -> None:
    swept: list[Path] = []
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if swept:
            real(descriptor, how)
            return
        swept.extend((tmp_path / "s").glob("*.lock"))
        if is_over:
            reader.clear_dead()
            real(descriptor, how)
        else:
            with swept[0].open() as theirs:
                real(theirs, fcntl.LOCK_EX)
                real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    add(writer, "a", b"a")
    (lock,) = set((tmp_path / "s").glob("*.lock")) - set(swept)
    assert [each.exists() for each in swept] == [not is_over]
    reader.clear_dead()
    assert lock.exists()
    assert not swept[0].exists()
    add(writer, "b", b"b")
    assert (reader.read("a"), reader.read("b")) == (b"a", b"b")


def test_closed_store_finds_nothing_stores_nothing_and_holds_no_memory(
    tmp_path: Path,
) -> None:
    made = opened(tmp_path / "s")
    add(made, "a", b"a")
    for name in "bcd":
        add(made, name, bytes(LARGE))
    made.delete("b")
    made.delete("c")
    add(made, "e", bytes(LARGE))  # reuses one of the two free slots
    made.delete("d")
    os.utime(tmp_path / "s", (0, 0))
    assert made.ids() == ["a", "e"]
    maps = [weakref.ref(each) for each in made._maps.values()]
    for _ in range(2):
        made.close()
    assert [each() for each in maps] == [None] * 3
    assert made.ids() == []
    assert not made.has("a")
    for size in (1, LARGE):
        with pytest.raises(ClosedError):
            add(made, "x", bytes(size))
    assert made._maps == {}


def test_maps_of_slots_are_limited_and_removed_with_the_slots(
    tmp_path: Path, writer: Segments, reader: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_shared_memory.segments.MOST_MAPS", 2)
    monkeypatch.setattr("dingsdk_shared_memory.segments.FREE_BYTES", 0)
    names = [f"p{index}" for index in range(3)]
    for name in names:
        add(writer, name, name.encode() * LARGE)
    for name in names:
        assert bytes(reader.read(name) or b"") == name.encode() * LARGE
    latest = {f"{writer._writer}-{number}.slot" for number in (3, 4)}  # number 1 is the segment
    assert writer._maps.keys() == reader._maps.keys() == latest
    assert all(memoryview(each).readonly for each in reader._maps.values())
    for name in names:
        writer.delete(name)
    add(writer, "last", bytes(3 * LARGE))
    assert reader.ids() == ["last"]
    assert reader._maps.keys() == set()


def test_late_reader_does_not_see_the_next_payload_in_a_slot(
    writer: Segments, reader: Segments
) -> None:
    add(writer, "old", b"o" * LARGE)
    assert reader.has("old")
    known = reader._index["old"]
    writer.delete("old")
    add(writer, "new", b"n" * LARGE)
    assert [slot.number for slot in writer._slots] == [1]

    assert reader._view(known) is None
    assert bytes(reader.read("new") or b"") == b"n" * LARGE


def test_truncated_slot_is_refused(tmp_path: Path, writer: Segments, reader: Segments) -> None:
    add(writer, "a", bytes(LARGE))
    with next((tmp_path / "s").glob("*.slot")).open("r+b") as file:
        file.truncate(LARGE - 4096)
    with pytest.raises(DataCorruptError, match=f"of {LARGE} bytes"):
        reader.read("a")


def test_slots_of_a_dead_writer_stay_as_long_as_their_payloads(tmp_path: Path) -> None:
    dead, keeper = opened(tmp_path / "s"), opened(tmp_path / "s")
    for name in ("a", "b"):
        add(dead, name, name.encode() * LARGE)
    dead.delete("b")
    keeper.sweep(lambda name: True, 0.0)
    assert files(tmp_path, "slot") == 2
    dead.close()

    keeper.sweep(lambda name: True, 0.0)
    assert files(tmp_path, "slot") == 1
    assert bytes(keeper.read("a") or b"") == b"a" * LARGE
    keeper.delete("a")
    keeper.sweep(lambda name: True, 0.0)
    assert list((tmp_path / "s").iterdir()) == []
    keeper.close()


def test_payload_that_a_writer_made_right_before_it_died_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s"
    keeper, dead = opened(path), opened(path)
    add(dead, "a", b"a")
    os.utime(path, (0, 0))
    assert keeper.ids() == ["a"]
    last = opened(path)
    add(last, "b", b"b")
    last.close()
    os.utime(path, (0, 0))  # simulates changes within one tick of the file system's clock
    keeper.clear_dead()
    with closing(opened(path)) as late:
        assert sorted(late.ids()) == ["a", "b"]
    for each in (keeper, dead):
        each.close()
