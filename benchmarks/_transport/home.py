"""Many collectors send pieces to one home over shared_memory, without envs and policies."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import say

from _transport.cluster import STEPS, Bench, Cluster, piece, scratch, serve, transport_in
from dingsdk.worker import create_buffer
from dingsdk.worker.replay_buffer.home import TableHome

COLLECTORS, BUFFER_ROWS, BATCH_ROWS = 64, 65_536, 256


def home(bench: Bench) -> None:
    """Measure the rows that 64 collectors, threads of one process, bring into one home."""
    names = [f"collector{index}" for index in range(COLLECTORS)]
    with scratch(bench.disk) as folder:
        cluster = Cluster(Path(folder) / "run", [(collectors, names)], names, "shared_memory")
        counts, seconds = _fill(cluster, names, bench.seconds)
        cluster.close()
    rate, shares = sum(counts) * STEPS / seconds, np.array(counts) / np.mean(counts)
    what = f"{COLLECTORS} collectors, threads of one process, pieces of {STEPS} rows"
    say(f"home: {what}")
    say(f"  {rate:,.0f} rows/s inserted, slowest collector {shares.min():.2f} of the mean")
    bench.report.figure("home", what, "rows", rate=rate)
    bench.report.goal("home", what, "slowest / mean", shares.min(), 0.5, at_least=True)


def collectors(address: str, folder: str, names: Sequence[str]) -> None:
    """Run these collectors; each stores a piece and announces it when it is asked."""
    transport = transport_in(Path(folder), "shared_memory")
    store, batch = transport.data_store(), piece("cartpole")

    def send_of(name: str) -> Any:
        numbers = itertools.count()

        def send(task: Mapping[str, Any]) -> dict[str, Any]:
            data_id = f"{name}-{next(numbers)}"
            store.put(data_id, batch)
            return {"data_id": data_id, "rows": STEPS}

        return send

    serve(transport, address, {name: {"send": send_of(name)} for name in names})
    transport.close()


def _fill(cluster: Cluster, names: Sequence[str], seconds: float) -> tuple[list[int], float]:
    """Insert announced pieces, draw a batch after each round of them, delete what left."""
    store = cluster.transport.data_store()
    buffer = create_buffer({"type": "naive", "replay_buffer_size": BUFFER_ROWS})
    table_home = TableHome(buffer, lambda data_id, digest: store.get(data_id))
    announced: queue.Queue[tuple[int, Mapping[str, Any]]] = queue.Queue(2 * COLLECTORS)
    until = time.monotonic() + seconds

    def follow(index: int) -> None:
        while time.monotonic() < until:
            announced.put((index, cluster.ask(names[index], {"name": "send"})))

    threads = [threading.Thread(target=follow, args=(index,)) for index in range(COLLECTORS)]
    began, counts, reported = time.monotonic(), [0] * COLLECTORS, 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not announced.empty():
        try:
            news = [announced.get(timeout=0.1)]
        except queue.Empty:
            continue
        while not announced.empty():
            news.append(announced.get_nowait())
        table_home.announce(each for _, each in news)
        table_home.sample(BATCH_ROWS, 0)
        for index, _ in news:
            counts[index] += 1
        reports = table_home.report(reported)["reports"]
        reported = reports[-1]["number"] if reports else reported
        left = {data_id for report in reports for data_id, _, _ in report["left"]}
        store.delete(left - table_home.known)
    return counts, time.monotonic() - began
