"""Recording and replaying the order of turns."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from dingsdk_in_memory.greenlets import GreenletScheduler
from dingsdk_in_memory.schedule import ScheduleWriter, read_schedule

from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.comm import ThreadScheduler

Replaying = Callable[[float], tuple[GreenletScheduler, threading.Event]]


def write(path: Path, turns: int) -> list[tuple[str, int, int]]:
    draw, ms = random.Random(3), 0
    expected: list[tuple[str, int, int]] = []
    writer = ScheduleWriter(path)
    for index in range(turns):
        if index % 50 == 0:
            expected.append((f"job-{index}", -1, 0))
            writer.add_job(expected[-1][0])
        ms += draw.choice([0, 0, 1, 127, 128, 70_000])
        expected.append(("", draw.randrange(300), ms))
        writer.add_turn(*expected[-1][1:])
    writer.close()
    writer.close()
    return expected


def test_file_records_every_turn(tmp_path: Path) -> None:
    path = tmp_path / "schedule.bin"
    assert read_written(path, 20_000) == 20_000 + 400
    assert path.stat().st_size < 4 * 20_000


def read_written(path: Path, turns: int) -> int:
    expected = write(path, turns)
    found = read_schedule(path)
    assert found == expected
    return len(found)


def test_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.bin"
    write(path, 60)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointCorruptError, match="cannot be used"):
            read_schedule(path)


def test_file_of_another_version_or_with_other_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.bin"
    write(path, 60)
    header, _, events = path.read_bytes().partition(b"\n")
    damaged = bytearray(events)
    damaged[len(damaged) // 2] ^= 1
    for content, why in (
        (header.replace(b"1", b"2") + b"\n" + events, "it has another header"),
        (events, "it has another header"),
        (header + b"\n" + events[:-1], "it is cut off"),
        (header + b"\n" + damaged, "Error -3"),
        (header + b"\n" + zlib.compress(b"\x01\x80"), "index out of range"),
        (header + b"\n" + zlib.compress(b"\x00\x01\xff"), "invalid start byte"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptError, match=f"{path} cannot be used: .*{why}"):
            read_schedule(path)


def run(scheduler: GreenletScheduler, busy_s: float) -> list[tuple[str, float]]:
    """Run competing jobs with random waits and some work; return which job ran at which time."""
    condition, told = scheduler.condition(), []

    def race(name: str) -> None:
        draw = random.Random(name)
        for _ in range(40):
            seen = len(told)
            with condition:
                condition.wait_for(lambda seen=seen: len(told) > seen + 3, draw.random() * 0.004)
            told.append((name, scheduler.clock()))
            until = time.monotonic() + draw.random() * busy_s
            while time.monotonic() < until:
                pass
            scheduler.yield_turn()

    jobs = [scheduler.spawn(lambda name=name: race(name), name) for name in ("a", "b", "c")]
    assert all(job.join(20.0) for job in jobs)
    scheduler.close()
    return told


def test_replayed_jobs_have_the_turns_and_times_of_the_recorded_ones(tmp_path: Path) -> None:
    path, began = tmp_path / "schedule.bin", time.monotonic()
    recorder, replayer = GreenletScheduler(), GreenletScheduler()
    recorder.record(path)
    told = run(recorder, busy_s=0.002)
    assert 0.0 < told[-1][1] <= time.monotonic() - began
    done = replayer.replay(path)
    assert run(replayer, busy_s=0.0005) == told
    assert done.is_set()
    assert run(GreenletScheduler(), busy_s=0.0005) != told


def test_time_before_the_first_job_is_zero_in_a_record_and_its_replay(tmp_path: Path) -> None:
    recorder, replayer = GreenletScheduler(), GreenletScheduler()
    recorder.record(tmp_path / "schedule.bin")
    assert recorder.clock() == 0.0
    run(recorder, busy_s=0.0)
    replayer.replay(tmp_path / "schedule.bin")
    assert replayer.clock() == 0.0


def test_jobs_of_the_thread_scheduler_cannot_be_recorded(tmp_path: Path) -> None:
    for method in (ThreadScheduler().record, ThreadScheduler().replay):
        with pytest.raises(ConfigError, match="ThreadScheduler do not take turns"):
            method(tmp_path / "schedule.bin")


def test_long_schedule_is_written_while_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_in_memory.schedule._FLUSH_BYTES", 1000)
    path, draw = tmp_path / "schedule.bin", random.Random(5)
    writer, ms = ScheduleWriter(path), 0
    writer.add_job("job")
    for _ in range(30_000):
        ms += draw.randrange(1 << 20)
        writer.add_turn(draw.randrange(1 << 20), ms)
    assert path.stat().st_size > 30_000
    writer.close()
    assert read_schedule(path)[-1][2] == ms


def test_job_that_waits_at_the_end_of_its_record_has_had_one_turn(tmp_path: Path) -> None:
    path, scheduler = tmp_path / "schedule.bin", GreenletScheduler()
    scheduler.record(path)
    condition, is_waiting = scheduler.condition(), threading.Event()

    def wait() -> None:
        with condition:
            condition.wait_for(lambda: bool(is_waiting.set()), 1000.0)

    scheduler.spawn(wait, "waits")
    assert is_waiting.wait(20.0)
    assert scheduler.close(0.0) == ["waits"]
    names = [(name, number) for name, number, _ in read_schedule(path)]
    assert names == [("waits", -1), ("", 0)]


def recorded(path: Path, **turns: int) -> None:
    """Record jobs; each yields the given number of times."""
    scheduler = GreenletScheduler()
    scheduler.record(path)
    spawn_yielding(scheduler, **turns)
    assert scheduler.close(20.0) == []


def spawn_yielding(scheduler: GreenletScheduler, **turns: int) -> list[str]:
    told: list[str] = []

    def run(name: str, count: int) -> None:
        for _ in range(count):
            told.append(name)
            scheduler.yield_turn()

    with scheduler.held():
        for name, count in turns.items():
            scheduler.spawn(partial(run, name, count), name)
    return told


def test_replay_continues_without_the_record_if_a_job_ends_earlier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dingsdk_in_memory")
    recorded(tmp_path / "schedule.bin", a=5, b=5)
    scheduler = GreenletScheduler()
    done = scheduler.replay(tmp_path / "schedule.bin")
    told = spawn_yielding(scheduler, a=2, b=5)
    assert done.wait(20.0)
    assert scheduler.close(20.0) == []
    assert sorted(told) == list("aabbbbb")
    assert "the replay ends at a, which has ended" in caplog.messages


@pytest.fixture
def replaying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replaying:
    """Begins a replay of two jobs, a and b, that waits for each so many seconds."""

    def begin(wait_s: float) -> tuple[GreenletScheduler, threading.Event]:
        monkeypatch.setattr("dingsdk_in_memory.greenlets.REPLAY_WAIT_S", wait_s)
        recorded(tmp_path / "schedule.bin", a=2, b=2)
        scheduler = GreenletScheduler()
        return scheduler, scheduler.replay(tmp_path / "schedule.bin")

    return begin


def test_replay_continues_without_the_record_if_a_job_is_not_started(
    replaying: Replaying, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dingsdk_in_memory")
    scheduler, done = replaying(0.02)
    told = spawn_yielding(scheduler, a=2)
    assert done.wait(20.0)
    assert scheduler.close(20.0) == []
    assert told == ["a", "a"]
    assert "the replay ends before the job b, which nobody starts" in caplog.messages


def test_close_ends_a_replay_that_waits_for_a_job(replaying: Replaying) -> None:
    scheduler, done = replaying(600.0)
    spawn_yielding(scheduler, a=0)
    scheduler.close(0.0)
    assert done.wait(20.0)


def test_replay_that_its_caller_ends_does_not_wait_for_jobs_of_the_record(
    replaying: Replaying,
) -> None:
    scheduler, done = replaying(600.0)
    told = spawn_yielding(scheduler, a=2)
    done.set()
    assert scheduler.close(20.0) == []
    assert told == ["a", "a"]
