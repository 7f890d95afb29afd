"""What flask_fs is held against: bare files, a queue of multiprocessing, Ray, and DI-engine."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from _transport.cluster import ROWS, SPAWN, STEPS, median_rate, piece, scratch


def bare_files(kind: str, seconds: float, disk: Path) -> float:
    """Return pieces a second that one process writes to files and reads back."""
    data = b"".join(column.tobytes() for column in piece(kind).columns.values())
    counts = []
    with scratch(disk) as folder:
        started = time.perf_counter()
        for number in itertools.count():
            path = Path(folder) / str(number)
            path.write_bytes(data)
            path.read_bytes()
            path.unlink()
            counts.append((time.perf_counter() - started + 0.5, 1))
            if counts[-1][0] - 0.5 > seconds:
                break
    return median_rate(counts)


def mp_queue(kind: str, seconds: float) -> float:
    """Return pieces a second through ``multiprocessing.Queue``."""
    channel, is_over = SPAWN.Queue(maxsize=64), SPAWN.Event()
    process = SPAWN.Process(target=_fill_queue, args=(kind, channel, is_over), daemon=True)
    process.start()
    channel.get()
    counts = []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds + 0.5:
        channel.get(timeout=10.0)
        counts.append((time.perf_counter() - started, 1))
    is_over.set()
    process.join(5.0)
    process.kill()
    return median_rate(counts)


def _fill_queue(kind: str, channel: Any, is_over: Any) -> None:
    columns = piece(kind).columns
    while not is_over.is_set():
        channel.put(columns)
    channel.cancel_join_thread()


def ray_actors(kind: str, seconds: float) -> float | None:
    """Return pieces a second from one Ray actor to another; None where Ray is not installed."""
    try:
        import ray
    except ImportError:
        return None
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")

    @ray.remote(num_cpus=0.5)
    class Source:
        def __init__(self) -> None:
            self.columns = piece(kind).columns

        def make(self) -> Any:
            return self.columns

    @ray.remote(num_cpus=0.5)
    class Sink:
        def take(self, columns: Any) -> int:
            return sum(int(column.ravel()[0]) for column in columns.values())

    source, sink = Source.remote(), Sink.remote()
    ray.get(sink.take.remote(source.make.remote()))
    counts, pending = [], []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds + 0.5:
        pending.append(sink.take.remote(source.make.remote()))
        if len(pending) > 16:
            ray.get(pending.pop(0))
            counts.append((time.perf_counter() - started, 1))
    ray.shutdown()
    return median_rate(counts)


def di_engine(python: Path, kind: str, seconds: float, folder: Path) -> dict[str, float]:
    """Return pieces a second of what ``di_engine.py`` measures, run by another interpreter."""
    columns = {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in ROWS[kind].items()}
    plan = {"steps": STEPS, "seconds": seconds, "folder": str(folder), "columns": columns}
    program = Path(__file__).with_name("di_engine.py")
    done = subprocess.run(
        [python, program, json.dumps(plan)],
        capture_output=True,
        text=True,
        timeout=300 + 4 * seconds,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{python} {program} failed:\n{done.stderr[-2000:]}")
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates
