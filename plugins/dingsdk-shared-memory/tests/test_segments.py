"""Segments of small payloads: generations, dead writers, and what another process may see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dingsdk_shared_memory.segments import MOST_ENTRIES, SEGMENT_BYTES, Segments

from dingsdk.data import PrivateDir
from dingsdk.errors import StorageFullError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(path: Path, clock: Clock | None = None) -> Segments:
    return Segments(PrivateDir(path), lambda size: None, clock or Clock())


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


def files(path: Path) -> int:
    return len(list((path / "s").iterdir()))


def test_frames_of_every_size_come_back_to_another_reader(
    writer: Segments, reader: Segments
) -> None:
    frames = {f"p{size}": bytes([size % 251]) * size for size in (1, 63, 64, 65, 4096, 16384)}
    for name, frame in frames.items():
        assert reader.read(name) is None
        writer.add(name, frame)
        assert reader.read(name) == frame
    for name, frame in frames.items():
        assert reader.read(name) == writer.read(name) == frame
    assert sorted(reader.ids()) == sorted(frames)


@pytest.mark.parametrize("size", [64, 16 << 10], ids=["entries run out", "bytes run out"])
def test_segment_is_written_again_once_all_its_payloads_are_deleted(
    tmp_path: Path, writer: Segments, reader: Segments, size: int
) -> None:
    for index in range(3 * MOST_ENTRIES):
        frame = index.to_bytes(8, "little") * (size // 8)
        writer.add(f"p{index}", frame)
        assert reader.read(f"p{index}") == frame
        assert reader.delete(f"p{index}")
        assert reader.read(f"p{index}") is None
    assert files(tmp_path) == 1
    assert writer.ids() == reader.ids() == []


def test_segment_with_a_payload_left_is_not_written_again(
    tmp_path: Path, writer: Segments, reader: Segments
) -> None:
    for index in range(2 * MOST_ENTRIES):
        writer.add(f"p{index}", index.to_bytes(8, "little"))
        if index != 5:
            reader.delete(f"p{index}")
    writer.add("last", b"x")
    assert reader.read("p5") == (5).to_bytes(8, "little")
    assert reader.ids() == ["p5", "last"]
    assert files(tmp_path) == 2


def test_deletion_that_comes_late_leaves_the_next_generation_alone(
    writer: Segments, reader: Segments
) -> None:
    writer.add("old", b"old")
    segment, number, _ = reader._index["old"] if reader.read("old") else (None, 0, 0)
    assert segment is not None
    writer.delete("old")
    own = writer._own
    assert own is not None
    own.begin_generation()
    writer._index.clear()
    writer.add("new", b"new")

    segment.delete(number)  # of the generation that the reader knows

    assert writer.read("new") == b"new"
    assert reader.read("new") == b"new"
    assert reader.read("old") is None


def test_deleting_twice_or_nothing_changes_nothing(writer: Segments, reader: Segments) -> None:
    writer.add("a", b"a")
    writer.add("b", b"b")
    assert reader.delete("a")
    assert not reader.delete("a")
    assert not writer.delete("a")
    assert not writer.delete("none")
    assert writer.has("b")
    assert not writer.has("a")


def test_entry_that_its_writer_did_not_live_to_count_is_not_seen(
    writer: Segments, reader: Segments
) -> None:
    writer.add("a", b"a")
    own = writer._own
    assert own is not None
    count = own.map[16:24]
    writer.add("b", b"b")
    own.map[16:24] = count
    assert reader.ids() == ["a"]
    assert reader.read("b") is None


def test_orphans_go_after_their_grace_and_segments_of_dead_writers_with_the_last(
    tmp_path: Path,
) -> None:
    clock = Clock()
    dead, living, keeper = (
        opened(tmp_path / "s"),
        opened(tmp_path / "s"),
        opened(tmp_path / "s", clock),
    )
    dead.add("a", b"a")
    dead.add("b", b"b")
    living.add("c", b"c")
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
    assert files(tmp_path) == 1  # that of the writer who lives
    living.add("d", b"d")
    assert keeper.read("d") == b"d"
    living.close()
    keeper.close()


def test_no_room_for_a_segment_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    def refuse(size: int) -> None:
        assert size == SEGMENT_BYTES
        raise StorageFullError("full", path="", reason="low_space")

    made = Segments(PrivateDir(tmp_path / "s"), refuse)
    with pytest.raises(StorageFullError):
        made.add("a", b"a")
    assert files(tmp_path) == 0
    assert not made.has("a")
    made.close()


def test_segments_made_within_one_tick_of_the_clock_are_all_found(
    tmp_path: Path, reader: Segments
) -> None:
    writers = [opened(tmp_path / "s") for _ in range(8)]
    for index, each in enumerate(writers):
        each.add(f"p{index}", b"x")
        assert reader.has(f"p{index}")
    for each in writers:
        each.close()


def test_segment_that_is_being_made_is_found_once_it_is_whole(
    tmp_path: Path, writer: Segments, reader: Segments
) -> None:
    writer.add("a", b"a")
    whole = next((tmp_path / "s").iterdir())
    content = whole.read_bytes()
    half = whole.with_name("0123456789abcdef.seg")
    half.touch(0o600)
    writer.delete("a")
    assert not reader.has("a")
    half.write_bytes(content)
    assert reader.has("a")
