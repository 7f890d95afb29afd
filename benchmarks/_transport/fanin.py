"""Many collectors report metadata to one master, without payloads and envs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import say

from _transport.cluster import STEPS, Bench, Cluster, flask_fs, scratch, serve
from dingsdk.errors import DingError


def fanin(bench: Bench) -> None:
    """Measure 8 workers with a process each, then 64 workers as threads of 4 processes."""
    _measure("8 collector processes", 8, 8, (1, 64), bench)
    _measure("64 collectors, threads of 4 processes", 64, 4, (1,), bench)


def reporters(address: str, folder: str, worker_ids: Sequence[str]) -> None:
    """Run these workers; each reports as many samples as a task asks for."""
    transport = flask_fs(Path(folder))
    serve(transport, address, {name: {"data": _reporter(name)} for name in worker_ids})
    transport.close()


def _reporter(worker_id: str) -> Any:
    meta = {"data_id": f"{worker_id}-0123456789abcdef", "rows": STEPS, "policy_iter": 12345}
    meta |= {"cur_episode": 12, "cur_step": 123456, "cur_sample": 123456, "eval_flag": False}

    def data(task: Mapping[str, Any]) -> dict[str, Any]:
        # All processes of a host share this clock (CLOCK_MONOTONIC).
        return {"began": time.monotonic(), "reports": [meta] * task["samples"]}

    return data


class _Tally:
    """Measurements of one worker."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.assigned: list[float] = []
        self.errors = 0

    def follow(self, cluster: Cluster, worker: str, samples: int, until: float) -> None:
        """Ask the worker repeatedly; count answers of other workers or wrong size as errors."""
        while (sent := time.monotonic()) < until:
            try:
                answer = cluster.ask(worker, {"name": "data", "samples": samples})
            except DingError:
                self.errors += 1
                continue
            self.delays.append(time.monotonic() - sent)
            self.assigned.append(answer["began"] - sent)
            reports = answer["reports"]
            is_right = len(reports) == samples and reports[0]["data_id"].startswith(f"{worker}-")
            self.errors += not is_right


def _measure(what: str, workers: int, processes: int, sizes: Sequence[int], bench: Bench) -> None:
    seconds = bench.seconds
    names = [f"collector{index}" for index in range(workers)]
    with scratch(bench.disk) as folder:
        starts = [(reporters, names[index::processes]) for index in range(processes)]
        cluster = Cluster(Path(folder) / "run", starts, names)
        say(f"fanin: metadata of {what}, {seconds:.0f} s each")
        for samples in sizes:
            tallies = [_Tally() for _ in names]
            until = time.monotonic() + seconds
            threads = [
                threading.Thread(target=tally.follow, args=(cluster, name, samples, until))
                for tally, name in zip(tallies, names, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            _tell(tallies, samples, what, bench)
        if cluster.lost:
            say(f"  {cluster.lost} workers were lost")
        cluster.close()


def _tell(tallies: Sequence[_Tally], samples: int, what: str, bench: Bench) -> None:
    counts = np.array([len(tally.delays) for tally in tallies])
    rate = counts.sum() / bench.seconds
    p99, assigned = (
        np.percentile(np.concatenate(waits), 99) * 1e3
        for waits in ([tally.delays for tally in tallies], [tally.assigned for tally in tallies])
    )
    shares = counts / counts.mean()
    say(
        f"  {samples:>2} samples a message: {rate:8,.0f} messages/s, "
        f"{rate * samples:10,.0f} samples/s, fastest worker {shares.max():.2f} of the mean"
    )
    say(f"     round trip p99 {p99:.1f} ms, sent to begun p99 {assigned:.1f} ms")
    load = f"{what}, {samples} samples a message"
    bench.report.figure("fanin", load, "messages", rate=rate, p99_ms=p99, assigned_p99_ms=assigned)
    errors = sum(tally.errors for tally in tallies)
    bench.report.goal("fanin", load, "number of errors", errors, 0)
    bench.report.goal("fanin", load, "slowest worker / mean", shares.min(), 0.5, at_least=True)
