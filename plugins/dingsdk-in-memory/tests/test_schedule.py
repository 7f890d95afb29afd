"""The order of turns is written down, and given out again."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from dingsdk_in_memory.greenlets import GreenletScheduler
from dingsdk_in_memory.schedule import ScheduleWriter, read_schedule

from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.comm import ThreadScheduler


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


def test_file_tells_every_turn(tmp_path: Path) -> None:
    path = tmp_path / "schedule.bin"
    assert read_written(path, 20_000) == 20_000 + 400
    assert path.stat().st_size < 4 * 20_000


def read_written(path: Path, turns: int) -> int:
    expected = write(path, turns)
    found = read_schedule(path)
    assert found == expected
    return len(found)


def test_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "schedule.bin"
    write(path, 60)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointCorruptError, match="cannot be used"):
            read_schedule(path)


def run(scheduler: GreenletScheduler, busy_s: float) -> list[tuple[str, float]]:
    """Let jobs race that wait as long as they draw and work for a while; return who ran when."""
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
    path = tmp_path / "schedule.bin"
    recorder, replayer = GreenletScheduler(), GreenletScheduler()
    recorder.record(path)
    began = time.monotonic()
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


def test_jobs_that_run_side_by_side_cannot_be_recorded(tmp_path: Path) -> None:
    for method in (ThreadScheduler().record, ThreadScheduler().replay):
        with pytest.raises(ConfigError, match="ThreadScheduler do not take turns"):
            method(tmp_path / "schedule.bin")
