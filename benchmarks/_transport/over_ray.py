"""Trajectory pieces from one Ray actor to another: actor calls, a compiled graph, dingsdk."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import say

from _transport.cluster import ROWS, Bench, median_rate, piece, scratch, serve, transport_in
from _transport.peers import SHARED
from dingsdk.worker.comm import Master

GOALS = {"call": 3.0, "compiled graph": 0.8}
NAMES = {
    "ray": "ray transport, one node",
    "gateway": "ray transport, two nodes",
    "call": "an actor call a piece",
    "compiled graph": "a compiled graph",
}
WAIT_S = 60.0
A_REPORT, UNDER_WAY = 8, 2
"""Pieces per report of a collector, and reports requested in advance."""


def over_ray(bench: Bench) -> None:
    """Compare the transport with plain Ray in the same cluster."""
    try:
        import ray
        from dingsdk_ray.cluster import connect, disconnect
    except ImportError:
        bench.report.lacks("the ray transport is not installed: pip install ./plugins/dingsdk-ray")
        return
    left = {path.name for path in SHARED.iterdir()}
    address = connect("local", num_cpus=4, object_store_bytes=1 << 30)
    try:
        for kind in ROWS:
            with scratch(bench.disk) as folder:
                section = {"kind": "ray", "address": address}
                rates = {
                    "ray": _ours(ray, section, Path(folder) / "near", kind, bench.seconds),
                    "gateway": _ours(
                        ray, section, Path(folder) / "far", kind, bench.seconds, is_far=True
                    ),
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
        # Compiled graphs leave semaphores behind, named after their processes: delete them.
        for path in SHARED.glob("sem.*"):
            maker = re.match(r"sem\.(?:hdr|obj)(\d+)-", path.name)
            if path.name not in left and maker and not Path("/proc", maker[1]).exists():
                path.unlink()


class Writer:
    """An actor that stores pieces as fast as it can, or returns them."""

    def serve(self, section: dict[str, Any], folder: Path, kind: str, address: str) -> None:
        """Act as a collector that stores the pieces of one report for each task."""
        transport = transport_in(folder, **section)
        numbers = itertools.count()

        def data(task: Mapping[str, Any]) -> dict[str, Any]:
            store = transport.data_store()  # a worker has it once it has joined
            names = [f"p{next(numbers)}" for _ in range(A_REPORT)]
            for name in names:
                store.put_soon(name, batch)
            store.flush()
            return {"names": names}

        batch = piece(kind)
        serve(transport, address, {"collector": {"data": data}})
        transport.close()

    def columns(self, kind: str) -> dict[str, Any]:
        """Return a piece as arrays, the same for each call."""
        return dict(columns_of(kind))

    def push(self, sink: Any, kind: str, seconds: float) -> list[tuple[float, int]]:
        """Send pieces to an actor, one per call."""
        import ray

        columns = self.columns(kind)
        return _timed(lambda: ray.get(sink.take.remote(columns), timeout=WAIT_S), seconds + 0.5)


class Sink:
    """An actor that reads pieces."""

    def take(self, columns: dict[str, Any]) -> int:
        """Read a whole piece."""
        return sum(int(np.asarray(each).view(np.uint8).sum()) for each in columns.values())


@functools.cache
def columns_of(kind: str) -> Mapping[str, Any]:
    return piece(kind).columns


def _timed(step: Callable[[], Any], seconds: float) -> list[tuple[float, int]]:
    counts: list[tuple[float, int]] = []
    started = time.perf_counter()
    while not counts or counts[-1][0] < seconds:
        step()
        counts.append((time.perf_counter() - started, 1))
    return counts


def _ours(
    ray: Any,
    section: dict[str, Any],
    folder: Path,
    kind: str,
    seconds: float,
    *,
    is_far: bool = False,
) -> float:
    folder.mkdir()
    transport = transport_in(folder, **section)
    joined = threading.Event()
    end, scheduler = transport.master_end(), transport.scheduler
    master = Master(
        end,
        scheduler,
        on_join=lambda info: joined.set(),
        on_renew=lambda worker_id: None,
        on_lost=lambda info, reason: None,
    )
    address = master.start()
    if is_far:  # both are on this node, but the writer uses the path between nodes
        address = address.replace(ray.get_runtime_context().get_node_id(), "0")
    running = ray.remote(num_cpus=0)(Writer).remote()
    running = running.serve.remote(section, folder, kind, address)
    if not joined.wait(WAIT_S):
        raise SystemExit("the writer did not join in time")
    store, sink = transport.data_store(), Sink()
    asked = [master.new_task("collector", {"name": "data"}).start() for _ in range(UNDER_WAY)]
    counts: list[tuple[float, int]] = []
    started = time.perf_counter()
    while not counts or counts[-1][0] < seconds + 0.5:
        names = asked.pop(0).value(WAIT_S)["names"]
        asked.append(master.new_task("collector", {"name": "data"}).start())
        for name in names:
            sink.take(store.get(name).columns)
        store.delete(names)
        counts.append((time.perf_counter() - started, len(names)))
    for each in asked:
        each.value(WAIT_S)
    master.ask("collector", {"name": "stop"}, WAIT_S)
    ray.get(running, timeout=WAIT_S)
    master.close()
    transport.close()
    transport.remove_data()
    return median_rate(counts)


def _calls(ray: Any, kind: str, seconds: float) -> float:
    writer = ray.remote(num_cpus=0)(Writer).remote()
    sink = ray.remote(num_cpus=0)(Sink).remote()
    return median_rate(ray.get(writer.push.remote(sink, kind, seconds), timeout=2 * WAIT_S))


def _compiled(ray: Any, kind: str, seconds: float) -> float:
    """Return pieces per second from an actor to this process, with one report in flight."""
    from ray.dag import InputNode

    writer, sink = ray.remote(num_cpus=0)(Writer).remote(), Sink()
    with InputNode() as asked:
        graph = writer.columns.bind(asked)
    compiled = graph.experimental_compile(_buffer_size_bytes=2 * piece(kind).nbytes)

    def take() -> None:
        sink.take(ray.get(under_way.pop(0), timeout=WAIT_S))

    def step() -> None:
        under_way.append(compiled.execute(kind))
        take()

    under_way = [compiled.execute(kind) for _ in range(A_REPORT - 1)]
    try:
        step()  # the first one takes 5 to 10 s
        rate = median_rate(_timed(step, seconds + 0.5))
        while under_way:
            take()
    finally:
        compiled.teardown(kill_actors=True)
    return rate
