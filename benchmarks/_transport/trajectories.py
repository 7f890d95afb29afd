"""Trajectory pieces from a collector process to a learner process."""

from __future__ import annotations

import itertools
import queue
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import ratio, say
from numpy.typing import NDArray

from _transport import peers
from _transport.cluster import (
    ROWS,
    STEPS,
    Bench,
    Cluster,
    flask_fs,
    median_rate,
    piece,
    scratch,
    serve,
)

REPORTS = {"cartpole": 64, "atari": 8}
"""Maximum of payloads that a collector holds and reports in one message. The default of its
``queue_size`` is 8, which is enough for payloads of megabytes."""
GOALS = {"cartpole": {"Ray": 3.0, "DI-engine": 30.0}, "atari": {"Ray": 2.0, "floor": 0.4}}
"""Goals: the least ratio to each peer."""
P50_MS, P99_MS = 20.0, 100.0
NAMES = {
    "flask_fs": "flask_fs, verified",
    "floor": "bare file write + read",
    "queue": "multiprocessing.Queue",
    "Ray": "Ray actor to actor",
}


def trajectories(bench: Bench) -> None:
    for kind in ROWS:
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        waits: list[NDArray[np.float64]] = []
        for _ in range(bench.rounds):
            fastest, _ = _ours(kind, bench.seconds, bench.disk)
            rates["flask_fs"].append(fastest)
            _, delays = _ours(kind, bench.seconds, bench.disk, fastest / 2)
            waits.append(np.percentile(delays, [50, 99]) * 1e3)
            rates["floor"].append(peers.bare_files(kind, bench.seconds / 4, bench.disk))
            rates["queue"].append(peers.mp_queue(kind, bench.seconds / 2))
            ray_rate = peers.ray_actors(kind, bench.seconds / 2)
            rates["Ray"] += [] if ray_rate is None else [ray_rate]
        _tell(kind, rates, np.median(waits, axis=0), bench)
        _tell_di_engine(kind, statistics.median(rates["flask_fs"]), bench)


def _tell(
    kind: str, rates: Mapping[str, list[float]], waits: NDArray[np.float64], bench: Bench
) -> None:
    size = piece(kind).nbytes
    report = bench.report
    say(f"trajectories, {kind}: {STEPS} steps, {size:,} bytes")
    for name, found in rates.items():
        if not found:
            continue
        rate = statistics.median(found)
        ours = ratio(rates["flask_fs"], found)
        report.figure("trajectories", kind, name, pieces_s=rate, ratio=ours, rounds=found)
        say(
            f"  {NAMES[name]:<26} {rate:>10,.0f} /s {rate * size / 1e9:6.2f} GB/s"
            f"   ours is {ours:6.2f} x"
        )
        if name in GOALS[kind]:
            least = GOALS[kind][name]
            report.goal("trajectories", kind, f"ours / {name}", ours, least, at_least=True)
    if not rates["Ray"]:
        report.lacks("Ray is not installed: pip install -r benchmarks/requirements-peers.txt")
    p50, p99 = map(float, waits)
    report.figure("trajectories", kind, "written to trainable", p50_ms=p50, p99_ms=p99)
    say(f"  written to trainable at half load: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    if kind == "cartpole":
        report.goal("trajectories", kind, "p50 in ms", p50, P50_MS)
        report.goal("trajectories", kind, "p99 in ms", p99, P99_MS)


def _tell_di_engine(kind: str, ours: float, bench: Bench) -> None:
    if bench.di_engine is None:
        bench.report.lacks(
            "DI-engine was not run: --di-engine-python; see benchmarks/requirements-di-engine.txt"
        )
        return
    with scratch(bench.disk) as folder:
        found = peers.di_engine(bench.di_engine, kind, bench.seconds, Path(folder))
    for name, rate in found.items():
        bench.report.figure("trajectories", kind, f"DI-engine {name}", pieces_s=rate)
        say(f"  DI-engine, {name:<15} {rate:>10,.1f} /s   ours is {ours / rate:6.1f} x")
    if least := GOALS[kind].get("DI-engine"):
        what = "ours / DI-engine, tasks and files"
        share = ours / found["tasks and files"]
        bench.report.goal("trajectories", kind, what, share, least, at_least=True)


def collector(address: str, folder: str, kind: str) -> None:
    """Put pieces at the requested rate; report them in batches."""
    transport = flask_fs(Path(folder))
    store, batch = transport.data_store(), piece(kind)
    numbers = itertools.count()
    reports: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=REPORTS[kind])
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
    """Read every piece with its checksum verified, and copy it into one array, as training does."""
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
            while not waiting.empty():  # only this thread takes items from it
                reports = reports + waiting.get_nowait()
            delays += cluster.ask("learner", {"name": "learn", "reports": reports})["delays"]
            store.delete([report["data_id"] for report in reports])
            counts.append((time.perf_counter() - started, len(reports)))
        is_over.set()
        thread.join(30.0)
        cluster.close()
    return median_rate(counts), delays
