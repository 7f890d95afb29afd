"""A master in this process, its worker processes, and the trajectory pieces they move."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import Report

from dingsdk import SampleBatch
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import Master, Slave, WorkerInfo

STEPS = 64
SPAWN = multiprocessing.get_context("spawn")
ROWS: dict[str, dict[str, tuple[tuple[int, ...], Any]]] = {
    "cartpole": {"obs": ((4,), np.float32), "next_obs": ((4,), np.float32)},
    "atari": {"obs": ((4, 84, 84), np.uint8), "next_obs": ((4, 84, 84), np.uint8)},
}
Tasks = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any] | None]]
Start = tuple[Callable[..., None], Any]
"""Main function of a process, called with (address, folder, argument), and its argument."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings of the sections.

    Attributes:
        seconds: Duration of each measurement.
        rounds: Number of rounds; all take a turn in each, and ratios are taken within one.
        disk: Folder for the files.
        di_engine: Interpreter with DI-engine installed.
        report: Receives figures and goals.
    """

    seconds: float
    rounds: int
    disk: Path
    di_engine: Path | None
    report: Report


def piece(kind: str) -> SampleBatch:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        name: rng.integers(0, 255, (STEPS, *shape)).astype(dtype)
        for name, (shape, dtype) in ROWS[kind].items()
    }
    columns["action"] = np.zeros(STEPS, np.int64)
    columns["reward"] = np.ones(STEPS, np.float32)
    columns["done"] = np.zeros(STEPS, np.bool_)
    return SampleBatch(columns)


def flask_fs(folder: Path) -> Any:
    return transport_in(folder, "flask_fs", data_dir=str(folder))


def transport_in(folder: Path, kind: str, **keys: Any) -> Any:
    return default_manager().create("transports", {"type": kind, **keys}, folder)


def scratch(disk: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=disk, prefix="bench-")


def serve(transport: Any, address: str, workers: Mapping[str, Tasks]) -> None:
    """Serve the tasks of each worker in threads of this process, until each gets a stop task."""
    slaves, ends = [], []
    for name, tasks in workers.items():
        is_over = threading.Event()
        slave = Slave(
            transport,
            WorkerInfo(name, "learner" if name == "learner" else "collector"),
            callback_fn={**tasks, "stop": lambda task, end=is_over: end.set()},
        )
        slave.start(address)
        slaves.append(slave)
        ends.append(is_over)
    for is_over in ends:
        is_over.wait(600.0)
    time.sleep(0.2)  # until the answers to "stop" are sent
    for slave in slaves:
        slave.close()


class Cluster:
    """A master in this process and its worker processes."""

    def __init__(
        self,
        folder: Path,
        processes: Sequence[Start],
        workers: Iterable[str],
        kind: str = "flask_fs",
    ) -> None:
        self.workers = list(workers)
        self.transport = flask_fs(folder) if kind == "flask_fs" else transport_in(folder, kind)
        self.lost = 0
        self._joined = threading.Semaphore(0)
        self.master = Master(
            self.transport.master_end(),
            self.transport.scheduler,
            on_join=lambda info: self._joined.release(),
            on_lost=self._on_lost,
        )
        address = self.master.start()
        self._processes = [
            SPAWN.Process(target=target, args=(address, str(folder), argument), daemon=True)
            for target, argument in processes
        ]
        for process in self._processes:
            process.start()
        for _ in self.workers:
            if not self._joined.acquire(timeout=60.0):
                raise SystemExit("a worker did not join within 60 s")

    def ask(self, worker: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.master.ask(worker, data, 60.0)

    def close(self) -> None:
        for name in self.workers:
            self.ask(name, {"name": "stop"})
        for process in self._processes:
            process.join(10.0)
        self.master.close()
        self.transport.close()

    def _on_lost(self, info: WorkerInfo, reason: str) -> None:
        self.lost += 1


def median_rate(counts: list[tuple[float, int]], slices: int = 5) -> float:
    """Return the median rate over slices of time, without the first half second.

    If most slices are empty, because the time is short or the machine is busy, return the mean.
    """
    begin, end = 0.5, counts[-1][0]
    width = (end - begin) / slices
    rates = []
    for index in range(slices):
        low, high = begin + index * width, begin + (index + 1) * width
        rates.append(sum(n for at, n in counts if low < at <= high) / width)
    return statistics.median(rates) or sum(n for _, n in counts) / end
