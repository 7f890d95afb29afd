"""What the transports carry, against the floor and peers, in one run.

    python benchmarks/transport.py                # all sections
    python benchmarks/transport.py trajectories policy --seconds 5

Sections:
    trajectories  64-step pieces from a collector process to a learner process: payloads through
                  files with checksums verified, metadata through the coordinator. CartPole
                  (2.9 KB) and Atari (3.6 MB). Floor: one process writes and reads bare files.
                  Then once more at half that rate, for the delay from written to trainable.
    control       tasks a second to one worker process.
    fanin         8 collector processes report metadata, 1 and 64 samples a message.
    policy        6.7 MB published and read by 4 readers. Floor: bare safetensors, same folder.
    memory        in_memory: pieces moved a second against pieces collected a second.

Every figure is the median of its repeats; compare ratios, not absolute numbers. Ray is measured
where it is installed (requirements-peers.txt), and said to be absent where it is not.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dingsdk import SampleBatch
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import Master, Slave, WorkerInfo

FOLDER = Path.cwd()
"""Disk that the files go to: the same for ours, floor and peers."""
STEPS = 64
SPAWN = multiprocessing.get_context("spawn")
ROWS = {
    "cartpole": {"obs": ((4,), np.float32), "next_obs": ((4,), np.float32)},
    "atari": {"obs": ((4, 84, 84), np.uint8), "next_obs": ((4, 84, 84), np.uint8)},
}
REPORTS = {"cartpole": 64, "atari": 4}
"""Payloads reported in one message: as many as wait, up to this."""


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
    cfg = {"type": "flask_fs", "data_dir": str(folder)}
    return default_manager().create("transports", cfg, folder)


# The worker processes -------------------------------------------------------------------------
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

    _serve(transport, address, "collector", {"data": data, "start": start})
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

    _serve(transport, address, "learner", {"learn": learn})
    transport.close()


def reporter(address: str, folder: str, worker_id: str) -> None:
    """Report metadata alone, as much as is asked for."""
    transport = flask_fs(Path(folder))

    def data(task: Mapping[str, Any]) -> dict[str, Any]:
        meta = {"data_id": f"{worker_id}-0123456789abcdef", "rows": STEPS, "policy_iter": 12345}
        meta |= {"cur_episode": 12, "cur_step": 123456, "cur_sample": 123456, "eval_flag": False}
        return {"reports": [meta] * task["samples"]}

    _serve(transport, address, worker_id, {"data": data})
    transport.close()


def _serve(transport: Any, address: str, role: Any, tasks: Mapping[str, Any]) -> None:
    is_over = threading.Event()
    slave = Slave(
        transport.slave_end(address),
        transport.scheduler,
        WorkerInfo(f"{role}-0", "learner" if role == "learner" else "collector"),
        callback_fn={**tasks, "stop": lambda task: is_over.set(), "null": lambda task: {}},
    )
    slave.start()
    is_over.wait(300.0)
    time.sleep(0.2)  # let the answer to "stop" leave
    slave.close()


class Cluster:
    """A master in this process and the worker processes it talks to."""

    def __init__(self, folder: Path, workers: Mapping[str, Callable[..., None]], kind: str) -> None:
        self.transport = flask_fs(folder)
        self._joined = threading.Semaphore(0)
        self.master = Master(
            self.transport.master_end(),
            self.transport.scheduler,
            on_join=lambda info: self._joined.release(),
            on_renew=lambda worker_id: None,
            on_lost=lambda worker_id, reason: None,
        )
        address = self.master.start()
        self._processes = [
            SPAWN.Process(target=target, args=(address, str(folder), kind or name), daemon=True)
            for name, target in workers.items()
        ]
        self._names = list(workers)
        for process in self._processes:
            process.start()
        for _ in workers:
            if not self._joined.acquire(timeout=60.0):
                raise SystemExit("a worker process did not join within 60 s")

    def ask(self, worker: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.master.ask(f"{worker}-0", data, 60.0)

    def close(self) -> None:
        for name in self._names:
            self.ask(name, {"name": "stop"})
        for process in self._processes:
            process.join(10.0)
        self.master.close()
        self.transport.close()


# Sections -----------------------------------------------------------------------------------
def trajectories(seconds: float) -> None:
    for kind in ROWS:
        size = piece(kind).nbytes
        fastest, _ = _ours(kind, seconds)
        _, delays = _ours(kind, seconds, fastest / 2)
        rows = [
            ("flask_fs, verified", fastest, delays),
            ("bare file write + read", _bare_files(kind, seconds / 4), []),
            ("multiprocessing.Queue", _mp_queue(kind, seconds / 2), []),
        ]
        ray_rate = _ray(kind, seconds / 2)
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


def _ours(kind: str, seconds: float, rate: float = float("inf")) -> tuple[float, list[float]]:
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        cluster = Cluster(Path(folder) / "run", {"learner": learner, "collector": collector}, kind)
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
    return _median_rate(counts), delays


def _median_rate(counts: list[tuple[float, int]], slices: int = 5) -> float:
    """Median over slices of time, the first half second left out."""
    begin, end = 0.5, counts[-1][0]
    width = (end - begin) / slices
    rates = []
    for index in range(slices):
        low, high = begin + index * width, begin + (index + 1) * width
        rates.append(sum(n for at, n in counts if low < at <= high) / width)
    return statistics.median(rates)


def _bare_files(kind: str, seconds: float) -> float:
    data = b"".join(column.tobytes() for column in piece(kind).columns.values())
    counts = []
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        started = time.perf_counter()
        for number in itertools.count():
            path = Path(folder) / str(number)
            path.write_bytes(data)
            path.read_bytes()
            path.unlink()
            counts.append((time.perf_counter() - started + 0.5, 1))
            if counts[-1][0] - 0.5 > seconds:
                return _median_rate(counts)
    raise AssertionError


def _mp_queue_child(kind: str, channel: Any, is_over: Any) -> None:
    columns = piece(kind).columns
    while not is_over.is_set():
        channel.put(columns)
    channel.cancel_join_thread()


def _mp_queue(kind: str, seconds: float) -> float:
    channel, is_over = SPAWN.Queue(maxsize=64), SPAWN.Event()
    process = SPAWN.Process(target=_mp_queue_child, args=(kind, channel, is_over), daemon=True)
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
    return _median_rate(counts)


def _ray(kind: str, seconds: float) -> float | None:
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
    return _median_rate(counts)


def control(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        cluster = Cluster(Path(folder) / "run", {"learner": learner}, "cartpole")
        window, counts, delays = [], [], []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds + 0.5:
            window.append(cluster.master.new_task("learner-0", {"name": "null"}).start())
            if len(window) >= 256:
                window.pop(0).value(30.0)
                counts.append((time.perf_counter() - started, 1))
        for task in window:
            task.value(30.0)
        for _ in range(200):
            began = time.perf_counter()
            cluster.ask("learner", {"name": "null"})
            delays.append(time.perf_counter() - began)
        cluster.close()
    say("control: tasks to one worker process over flask_fs")
    say(f"  256 in flight              {_median_rate(counts):>10,.0f} tasks/s   goal 2,000")
    say(f"  one after the other        {np.median(delays) * 1e3:10.2f} ms a task")


def fanin(seconds: float, workers: int = 8) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        names = [f"collector{index}" for index in range(workers)]
        cluster = Cluster(Path(folder) / "run", dict.fromkeys(names, reporter), "")
        say(f"fanin: metadata of {workers} collector processes")
        for samples in (1, 64):
            delays: dict[str, list[float]] = {name: [] for name in names}
            until = time.perf_counter() + seconds

            def follow(name: str, samples: int = samples, until: float = until) -> None:
                while (began := time.perf_counter()) < until:
                    cluster.ask(name, {"name": "data", "samples": samples})
                    delays[name].append(time.perf_counter() - began)  # noqa: B023 - joined below

            threads = [threading.Thread(target=follow, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            counts = [len(each) for each in delays.values()]
            rate = sum(counts) / seconds
            p99 = np.percentile(np.concatenate(list(delays.values())), 99) * 1e3
            say(
                f"  {samples:>2} samples a message: {rate:8,.0f} messages/s, "
                f"{rate * samples:10,.0f} samples/s, p99 {p99:.1f} ms, "
                f"slowest worker {min(counts) / np.mean(counts):.2f} of the mean"
            )
        cluster.close()


def policy(seconds: float) -> None:
    import torch
    from safetensors.torch import load, save

    state = {f"layer{i}.weight": torch.randn(512, 409) for i in range(8)}
    size = sum(tensor.nbytes for tensor in state.values())
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        transport = flask_fs(Path(folder) / "run")
        writer = transport.policy_store()
        readers = [flask_fs(Path(folder) / "run") for _ in range(4)]
        stores = [reader.policy_store() for reader in readers]
        bare = Path(folder) / "bare.safetensors"
        ours, floor = [], []
        deadline = time.perf_counter() + seconds
        for version in itertools.count(1):
            began = time.perf_counter()
            writer.publish("p", state, version)
            for store in stores:
                assert store.newest("p", version - 1) is not None
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            part = bare.with_suffix(".part")
            part.write_bytes(save(state))
            part.replace(bare)
            for _ in stores:
                load(bare.read_bytes())
            floor.append(time.perf_counter() - began)
            if time.perf_counter() > deadline:
                break
        for each in (transport, *readers):
            each.close()
    say(f"policy: {size:,} bytes published and read by 4 readers")
    say(f"  flask_fs, verified         {np.median(ours) * 1e3:10.2f} ms")
    say(
        f"  bare safetensors           {np.median(floor) * 1e3:10.2f} ms   "
        f"ours takes {np.median(ours) / np.median(floor):.2f} x, goal 1.3"
    )


def memory(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="bench-") as folder:
        transport = default_manager().create("transports", {"type": "in_memory"}, Path(folder))
        store = transport.data_store()
        say("memory: in_memory, one piece put, read and deleted")
        for kind in ROWS:
            batches = [piece(kind) for _ in range(4)]
            counts = []
            started = time.perf_counter()
            for number in itertools.count():
                batch = batches[number % 4]
                store.put(f"p{number}", batch)
                got = store.get(f"p{number}")
                assert np.shares_memory(got.columns["obs"], batch.columns["obs"])
                store.delete([f"p{number}"])
                counts.append((time.perf_counter() - started + 0.5, 1))
                if counts[-1][0] - 0.5 > seconds / 4:
                    break
            say(f"  {kind:<26} {_median_rate(counts):>10,.0f} /s, no copy")
        transport.close()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


SECTIONS = {
    "trajectories": trajectories,
    "control": control,
    "fanin": fanin,
    "policy": policy,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each figure")
    parser.add_argument("--dir", type=Path, default=FOLDER, help="disk that the files go to")
    args = parser.parse_args()
    globals()["FOLDER"] = args.dir
    unknown = set(args.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    for name in args.sections or SECTIONS:
        SECTIONS[name](args.seconds)


if __name__ == "__main__":
    main()
