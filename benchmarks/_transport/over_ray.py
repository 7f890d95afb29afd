"""Pieces of trajectories from one Ray actor to another: by calls, by a compiled graph, by ours."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import say

from _transport.cluster import ROWS, Bench, median_rate, piece, scratch

GOALS = {"call": 3.0, "compiled graph": 0.8}
NAMES = {
    "ray": "ray transport, verified",
    "call": "an actor call a piece",
    "compiled graph": "a compiled graph",
}
WAIT_S = 30.0


def over_ray(bench: Bench) -> None:
    """Measure the transport against plain Ray, in the same cluster."""
    try:
        import ray
        from dingsdk_ray.cluster import connect, disconnect
    except ImportError:
        bench.report.lacks("the ray transport is not installed: pip install ./plugins/dingsdk-ray")
        return
    address = connect("local", num_cpus=4, object_store_bytes=1 << 30)
    try:
        for kind in ROWS:
            with scratch(bench.disk) as folder:
                section = {"type": "ray", "address": address}
                rates = {
                    "ray": _ours(ray, section, Path(folder) / "run", kind, bench.seconds),
                    "call": _calls(ray, kind, bench.seconds / 2),
                    "compiled graph": _compiled(ray, kind, bench.seconds / 2),
                }
            say(f"ray, {kind}: {piece(kind).nbytes:,} bytes")
            for name, rate in rates.items():
                ours = rates["ray"] / rate
                say(f"  {NAMES[name]:<26} {rate:>10,.0f} /s   ours is {ours:6.2f} x")
                bench.report.figure("ray", kind, name, pieces_s=rate, ratio=ours)
                if name in GOALS:
                    least = GOALS[name]
                    bench.report.goal("ray", kind, f"ours / {name}", ours, least, at_least=True)
    finally:
        disconnect()


class Writer:
    """An actor that stores pieces as fast as it can, or returns them."""

    def put(self, section: dict[str, Any], folder: Path, kind: str, seconds: float) -> int:
        """Store pieces under rising numbers; return how many."""
        from dingsdk.plugins import default_manager

        transport = default_manager().create("transports", section, folder)
        store, batch = transport.data_store(), piece(kind)
        started = time.perf_counter()
        for number in itertools.count():
            if time.perf_counter() - started > seconds:
                transport.close()
                return number
            store.put(f"p{number}", batch)
        raise AssertionError

    def columns(self, kind: str) -> dict[str, Any]:
        """Return a piece as arrays."""
        return dict(piece(kind).columns)

    def push(self, sink: Any, kind: str, seconds: float) -> list[tuple[float, int]]:
        """Call an actor with a piece at a time."""
        import ray

        columns = self.columns(kind)
        return _timed(lambda: ray.get(sink.take.remote(columns), timeout=WAIT_S), seconds)


class Sink:
    """An actor that reads pieces."""

    def take(self, columns: dict[str, Any]) -> int:
        """Read a piece whole."""
        return sum(int(np.asarray(each).view(np.uint8).sum()) for each in columns.values())


def _timed(step: Callable[[], Any], seconds: float) -> list[tuple[float, int]]:
    counts = []
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        step()
        counts.append((now, 1))
    return counts


def _ours(ray: Any, section: dict[str, Any], folder: Path, kind: str, seconds: float) -> float:
    from dingsdk.plugins import default_manager

    folder.mkdir()
    transport = default_manager().create("transports", section, folder)
    store, sink = transport.data_store(), Sink()
    len(store)  # the hub starts
    writer = ray.remote(num_cpus=0)(Writer).remote()
    ray.get(writer.columns.remote(kind), timeout=WAIT_S)
    running = writer.put.remote(section, folder, kind, seconds + 1.0)
    store.get("p0", WAIT_S)
    numbers = itertools.count()

    def step() -> None:
        name = f"p{next(numbers)}"
        sink.take(store.get(name, WAIT_S).columns)
        store.delete([name])

    counts = _timed(step, seconds)
    ray.get(running, timeout=WAIT_S)
    transport.close()
    transport.remove_data()
    return median_rate(counts)


def _calls(ray: Any, kind: str, seconds: float) -> float:
    writer = ray.remote(num_cpus=0)(Writer).remote()
    sink = ray.remote(num_cpus=0)(Sink).remote()
    return median_rate(ray.get(writer.push.remote(sink, kind, seconds), timeout=2 * WAIT_S))


def _compiled(ray: Any, kind: str, seconds: float) -> float:
    from ray.dag import InputNode

    writer = ray.remote(num_cpus=0)(Writer).remote()
    sink = ray.remote(num_cpus=0)(Sink).remote()
    with InputNode() as asked:
        graph = sink.take.bind(writer.columns.bind(asked))
    compiled = graph.experimental_compile()
    try:
        return median_rate(_timed(lambda: ray.get(compiled.execute(kind)), seconds))
    finally:
        compiled.teardown()
