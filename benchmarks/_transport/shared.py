"""shared_memory from one process to another, compared with iceoryx2, faster-fifo and copies."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import ratio, say

from _transport import peers
from _transport.cluster import Bench, Cluster, median_rate, piece, scratch, serve, transport_in

TYPE = "shared_memory"
A_REPORT = {"cartpole": 64, "atari": 8}
UNDER_WAY = 4
"""Reports that are requested from the writer and not yet acknowledged by the reader."""
READS = 2
"""Reports in flight to the reader; with more than this, the oldest one is waited for."""
COPIES = 16
NAMES = {
    "head": "shared_memory",
    "xxh3-128": "shared_memory, verified",
    "floor": "bare memory and a pipe",
    "iceoryx2": "iceoryx2, frames",
    "faster-fifo": "faster-fifo, 16 frames a put",
    "faster-fifo, one": "faster-fifo, a frame a put",
    "faster-fifo, pickled": "faster-fifo, 16 dicts a put",
    "memcpy": "copy into 16 buffers in turn",
}
GOALS = {"cartpole": {"iceoryx2": 0.8, "faster-fifo": 3.0}, "atari": {"memcpy": 0.8}}


def shared_memory(bench: Bench) -> None:
    for kind in A_REPORT:
        rates: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(bench.rounds):
            for digest in ("head", "xxh3-128"):
                rates[digest].append(_ours(kind, bench, digest))
            found = {
                "floor": peers.bare_memory(kind, bench.seconds, A_REPORT[kind], UNDER_WAY),
                "iceoryx2": peers.iceoryx2(kind, bench.seconds) if kind == "cartpole" else None,
                "faster-fifo": _fifo(kind, bench.seconds, peers.AN_ACK),
                "faster-fifo, one": _fifo(kind, bench.seconds, 1),
                "faster-fifo, pickled": _fifo(kind, bench.seconds, peers.AN_ACK, pickled=True),
                "memcpy": _copies(kind, bench.seconds / 4) if kind == "atari" else None,
            }
            for name, rate in found.items():
                rates[name] += [] if rate is None else [rate]
        _tell(kind, rates, bench)
    _policies(bench)


def _tell(kind: str, rates: Mapping[str, list[float]], bench: Bench) -> None:
    size = piece(kind).nbytes
    say(f"shared memory, {kind}: {size:,} bytes, from process to process")
    for name, found in rates.items():
        if not found:
            continue
        rate, ours = statistics.median(found), ratio(rates["head"], found)
        bench.report.figure("shared_memory", kind, name, pieces_s=rate, ratio=ours, rounds=found)
        say(f"  {NAMES[name]:<30} {rate:>10,.0f} /s   ours is {ours:6.2f} x")
    for name, least in GOALS[kind].items():
        if rates[name]:
            ours = ratio(rates["head"], rates[name])
            bench.report.goal("shared_memory", kind, f"ours / {name}", ours, least, at_least=True)
            most = ratio(rates["floor"], rates[name])
            bench.report.figure("shared_memory", kind, f"floor / {name}", ratio=most)
            say(f"        the floor, with the same frames and copies, reaches {most:.2f}")
        else:
            bench.report.lacks(f"{name} is not installed: benchmarks/requirements-peers.txt")


def _fifo(kind: str, seconds: float, a_put: int, pickled: bool = False) -> float | None:
    return peers.faster_fifo(kind, seconds, a_put, pickled) if kind == "cartpole" else None


def writer(address: str, folder: str, argument: tuple[str, str]) -> None:
    """Put the pieces of one report for each task."""
    kind, digest = argument
    transport = transport_in(Path(folder), TYPE, digest=digest)
    store, batch = transport.data_store(), piece(kind)
    numbers = itertools.count()

    def data(task: Mapping[str, Any]) -> dict[str, Any]:
        names = [f"bench-{next(numbers)}" for _ in range(A_REPORT[kind])]
        for name in names:
            store.put(name, batch)
        return {"names": names}

    serve(transport, address, {"collector": {"data": data}})
    transport.close()


def reader(address: str, folder: str, kind: str) -> None:
    """Read and delete the pieces that each task names, as a learner's process does."""
    transport = transport_in(Path(folder), TYPE)
    store = transport.data_store()
    home = {name: np.empty_like(column) for name, column in piece(kind).columns.items()}

    def read(task: Mapping[str, Any]) -> None:
        for name in task["names"]:
            columns = store.get(name).columns
            if kind == "cartpole":  # large pieces are used in place, without a copy
                for column, values in columns.items():
                    home[column][...] = values
        del columns
        store.delete(task["names"])

    serve(transport, address, {"learner": {"read": read}})
    transport.close()


def _ours(kind: str, bench: Bench, digest: str) -> float:
    """Return pieces per second that one process puts, and another one reads and deletes.

    This process forwards the announcements, as a coordinator does.
    """
    with scratch(bench.disk) as folder:
        processes = [(writer, (kind, digest)), (reader, kind)]
        cluster = Cluster(Path(folder) / "run", processes, ["collector", "learner"], TYPE)

        def start(worker: str, **task: Any) -> Any:
            return cluster.master.new_task(worker, task).start()

        writes = [start("collector", name="data") for _ in range(UNDER_WAY)]
        reads: list[Any] = []
        counts: list[tuple[float, int]] = []
        started = time.perf_counter()
        while not counts or counts[-1][0] < bench.seconds + 0.5:
            names = writes.pop(0).value(30.0)["names"]
            reads.append(start("learner", name="read", names=names))
            if len(reads) > READS:
                reads.pop(0).value(30.0)
                writes.append(start("collector", name="data"))
                counts.append((time.perf_counter() - started, len(names)))
        for each in (*writes, *reads):
            each.value(30.0)
        cluster.close()
        cluster.transport.remove_data()
    return median_rate(counts)


def _copies(kind: str, seconds: float) -> float:
    columns = piece(kind).columns
    homes = [{k: np.empty_like(column) for k, column in columns.items()} for _ in range(COPIES)]
    counts = []
    started = time.perf_counter()
    for home in itertools.cycle(homes):
        for name, column in columns.items():
            home[name][...] = column
        counts.append((time.perf_counter() - started + 0.5, 1))
        if counts[-1][0] - 0.5 > seconds:
            return median_rate(counts)
    raise AssertionError("a cycle has no end")


def _policies(bench: Bench) -> None:
    """Measure a policy of 6.7 MB to 4 readers, and the same copies through bare shared memory."""
    from multiprocessing.shared_memory import SharedMemory

    import torch

    state = {f"layer{i}.weight": torch.randn(512, 409) for i in range(8)}
    flat = np.concatenate([tensor.numpy().reshape(-1) for tensor in state.values()])
    times: dict[str, list[float]] = {"bare copies": []}
    segments = [SharedMemory(create=True, size=flat.nbytes) for _ in range(4)]
    with scratch(bench.disk) as folder, ExitStack() as stack:
        for segment in segments:
            stack.callback(segment.unlink)
            stack.callback(segment.close)
        stores = {}
        for digest in ("head", "xxh3-128"):
            path, times[NAMES[digest]] = Path(folder) / digest, []
            made = [transport_in(path, TYPE, digest=digest) for _ in range(5)]
            stack.callback(made[0].remove_data)
            for each in made:
                stack.callback(each.close)
            stores[digest] = [each.policy_store() for each in made]
        deadline = time.perf_counter() + bench.seconds
        for version in itertools.count(1):
            for digest, (publisher, *readers) in stores.items():
                began = time.perf_counter()
                publisher.publish("p", state, version)
                for reader in readers:
                    assert reader.newest("p", version - 1) is not None
                times[NAMES[digest]].append(time.perf_counter() - began)
            began = time.perf_counter()
            home = np.ndarray(flat.shape, flat.dtype, segments[version % 4].buf)
            home[...] = flat
            for _ in readers:
                home.copy()
            times["bare copies"].append(time.perf_counter() - began)
            del home
            if time.perf_counter() > deadline:
                break
    load = f"{flat.nbytes:,} bytes, 4 readers"
    bench.report.times("shared_memory policy", load, times, 1)
    ours = ratio(times[NAMES["head"]], times["bare copies"])
    bench.report.goal("shared_memory policy", load, "ours / bare copies", ours, 2.0)
