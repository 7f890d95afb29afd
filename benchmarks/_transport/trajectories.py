"""Pieces of trajectories from a collector process to a learner process."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _transport import peers
from _transport.cluster import (
    ROWS,
    STEPS,
    Cluster,
    flask_fs,
    median_rate,
    piece,
    say,
    scratch,
    serve,
)

REPORTS = {"cartpole": 64, "atari": 4}
"""Payloads reported in one message: as many as wait, up to this."""


def trajectories(seconds: float, disk: Path) -> None:
    for kind in ROWS:
        size = piece(kind).nbytes
        fastest, _ = _ours(kind, seconds, disk)
        _, delays = _ours(kind, seconds, disk, fastest / 2)
        rows = [
            ("flask_fs, verified", fastest, delays),
            ("bare file write + read", peers.bare_files(kind, seconds / 4, disk), []),
            ("multiprocessing.Queue", peers.mp_queue(kind, seconds / 2), []),
        ]
        ray_rate = peers.ray_actors(kind, seconds / 2)
        if ray_rate is not None:
            rows.append(("Ray actor to actor", ray_rate, []))
        say(f"trajectories, {kind}: {STEPS} steps, {size:,} bytes")
        ours = rows[0][1]
        for name, rate, waits in rows:
            line = f"  {name:<26} {rate:>10,.0f} /s {rate * size / 1e9:6.2f} GB/s"
            line += f"   ours is {ours / rate:6.2f} x"
            if waits:
                p50, p99 = np.percentile(waits, [50, 99]) * 1e3
                line += f"   written to trainable p50 {p50:.1f} ms, p99 {p99:.1f} ms at half load"
            say(line)
        if ray_rate is None:
            say("  Ray is not installed: pip install -r benchmarks/requirements-peers.txt")


def collector(address: str, folder: str, kind: str) -> None:
    """Put pieces as fast as they are asked for; report them in batches."""
    transport = flask_fs(Path(folder))
    store, batch = transport.data_store(), piece(kind)
    numbers = itertools.count()
    reports: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=2 * REPORTS[kind])
    is_over = threading.Event()
    pace = {"rate": float("inf")}

    def produce() -> None:
        started = time.perf_counter()
        for count in itertools.count():
            is_over.wait(max(0.0, started + count / pace["rate"] - time.perf_counter()))
            if is_over.is_set():
                return
            data_id = f"bench-{next(numbers)}"
            store.put(data_id, batch)
            meta = {"data_id": data_id, "rows": STEPS, "written": time.time()}
            while not is_over.is_set():
                try:
                    reports.put(meta, timeout=0.1)
                    break
                except queue.Full:
                    pass

    def data(task: Mapping[str, Any]) -> dict[str, Any]:
        found = [reports.get(timeout=10.0)]
        while len(found) < REPORTS[kind] and not reports.empty():
            found.append(reports.get_nowait())
        return {"reports": found}

    thread = threading.Thread(target=produce, daemon=True)

    def start(task: Mapping[str, Any]) -> None:
        pace["rate"] = task["rate"]
        thread.start()

    serve(transport, address, {"collector": {"data": data, "start": start}})
    is_over.set()
    transport.close()


def learner(address: str, folder: str, kind: str) -> None:
    """Read every piece whole, checksum verified, and copy it into one array, as training does."""
    transport = flask_fs(Path(folder))
    store = transport.data_store()
    home = {name: np.empty_like(column) for name, column in piece(kind).columns.items()}

    def learn(task: Mapping[str, Any]) -> dict[str, Any]:
        delays = []
        for report in task["reports"]:
            for name, column in store.get(report["data_id"]).columns.items():
                home[name][...] = column
            delays.append(time.time() - report["written"])
        return {"delays": delays}

    serve(transport, address, {"learner": {"learn": learn, "null": lambda task: {}}})
    transport.close()


def _ours(
    kind: str, seconds: float, disk: Path, rate: float = float("inf")
) -> tuple[float, list[float]]:
    with scratch(disk) as folder:
        processes = [(learner, kind), (collector, kind)]
        cluster = Cluster(Path(folder) / "run", processes, ["learner", "collector"])
        cluster.ask("collector", {"name": "start", "rate": rate})
        store = cluster.transport.data_store()
        waiting: queue.Queue[list[Any]] = queue.Queue(maxsize=2)
        is_over = threading.Event()

        def gather() -> None:
            while not is_over.is_set():
                reports = cluster.ask("collector", {"name": "data"})["reports"]
                while not is_over.is_set():
                    try:
                        waiting.put(reports, timeout=0.1)
                        break
                    except queue.Full:
                        pass

        thread = threading.Thread(target=gather, daemon=True)
        thread.start()
        counts: list[tuple[float, int]] = []
        delays: list[float] = []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds + 0.5:
            reports = waiting.get(timeout=30.0)
            delays += cluster.ask("learner", {"name": "learn", "reports": reports})["delays"]
            store.delete([report["data_id"] for report in reports])
            counts.append((time.perf_counter() - started, len(reports)))
        is_over.set()
        thread.join(30.0)
        cluster.close()
    return median_rate(counts), delays
