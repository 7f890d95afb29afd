"""Memory per row, and the speed of saving and loading rows."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from _buffers import ours
from _buffers.floor import Floor
from _buffers.measure import Entrant, Pace, Report, ratio, say, take_turns
from _buffers.sections import FLOOR, OURS
from _buffers.workloads import Workload
from dingsdk import SampleBatch

_SPAWN = multiprocessing.get_context("spawn")
_MEMORY: tuple[tuple[str, dict[str, Any], dict[str, float]], ...] = (
    ("naive", {}, {"W1": 1.05, "W2": 1.05}),
    ("next_of", {"storage": {"type": "array", "next_of": "obs"}}, {"W1": 0.75, "W2": 0.52}),
)
"""Settings of a naive buffer, and the goal: memory per row as a share of the raw bytes."""


def memory(load: Workload, report: Report) -> None:
    """Fill a buffer in a new process, and measure by how much the process grows."""
    say(f"memory {load.name}: raw rows of {load.row_bytes:,} bytes")
    for what, cfg, limits in _MEMORY:
        try:
            ours.make(load, "naive", **cfg).close()
        except ours.NotBuiltError as error:
            report.lacks(f"memory {load.name}: not built ({error})")
            continue
        found = _grown_bytes(load, cfg) / load.capacity
        report.figure("memory", load.name, what, bytes_per_row=found, raw_bytes=load.row_bytes)
        say(f"  {what:<28} {found:12,.1f} bytes a row")
        share = found / load.row_bytes
        report.goal(
            "memory", load.name, f"{what}: share of the raw bytes", share, limits[load.name]
        )


def _grown_bytes(load: Workload, cfg: Mapping[str, Any]) -> int:
    here, there = _SPAWN.Pipe(duplex=False)
    child = _SPAWN.Process(target=_fill, args=(there, load, cfg), daemon=True)
    child.start()
    there.close()
    if not here.poll(300.0):
        child.kill()
        raise SystemExit(f"filling a buffer of {load.name} took more than 300 s")
    grown: int = here.recv()
    child.join(10.0)
    here.close()
    return grown


def _fill(there: Connection, load: Workload, cfg: Mapping[str, Any]) -> None:
    # Warm up with a discarded buffer: imports, compiled code and chunks must not be counted.
    stream = load.stream()
    with ours.make(load, "naive", **cfg) as practice:
        for _ in range(4):
            practice.push(SampleBatch(next(stream)), 0)
    before = _resident_bytes()
    buffer = ours.make(load, "naive", **cfg)
    while buffer.count() < load.capacity:
        buffer.push(SampleBatch(next(stream)), 0)
    there.send(_resident_bytes() - before)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def keep(load: Workload, pace: Pace, disk: Path, report: Report) -> None:
    """Save a full buffer and load it into another; the floor writes and reads the same bytes."""
    buffer, other = ours.full(load, "naive"), ours.make(load, "naive")
    columns = Floor(load).columns
    with tempfile.TemporaryDirectory(dir=disk, prefix="bench-") as folder:
        numbers = itertools.count()

        def ours_round() -> None:
            # A new path each time: measure writing, not replacing.
            path = str(Path(folder) / f"rows{next(numbers)}")
            buffer.save_data(path)
            other.load_data(path)

        def floor_round() -> None:
            path = Path(folder) / f"bare{next(numbers)}"
            with path.open("wb", buffering=0) as file:
                for column in columns.values():
                    file.write(column.data.cast("B"))
                os.fsync(file.fileno())
            with path.open("rb", buffering=0) as file:
                for column in columns.values():
                    file.readinto(np.empty_like(column).data.cast("B"))

        seconds = take_turns([Entrant(FLOOR, floor_round), Entrant(OURS, ours_round)], pace)
    report.times("keep", load.name, seconds, load.capacity)
    share = ratio(seconds[FLOOR], seconds[OURS])
    report.goal("keep", load.name, "share of the disk's speed", share, 0.5, at_least=True)
    for each in (buffer, other):
        each.close()
