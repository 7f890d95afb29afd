"""Peers of the transports: bare files and memory, queues, Ray, iceoryx2 and DI-engine."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from _transport.cluster import ROWS, SPAWN, STEPS, median_rate, piece, scratch
from dingsdk.data import decode_batch, encode_batch

SHARED = Path("/dev/shm")
WINDOW = 256
"""Pieces in flight to a peer."""
AN_ACK = 16
"""Pieces that a peer sends or acknowledges at once, if it can and is configured to."""


def bare_files(kind: str, seconds: float, disk: Path) -> float:
    """Return pieces per second that one process writes to files and reads back."""
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
    """Return pieces per second through ``multiprocessing.Queue``."""
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
    """Return pieces per second from one Ray actor to another; None if Ray is not installed."""
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


def iceoryx2(kind: str, seconds: float) -> float | None:
    """Return pieces per second through iceoryx2, as frames; None if it is not installed.

    Pieces are copied in and out one by one, with 256 in flight, and acknowledged 16 at a time.
    """
    try:
        import iceoryx2 as found
    except ImportError:
        return None
    found.set_log_level(found.LogLevel.Error)
    name, is_over = f"dingsdk-{os.getpid()}", SPAWN.Event()
    process = SPAWN.Process(target=_fill_iceoryx2, args=(kind, name, is_over), daemon=True)
    process.start()
    node, pieces = _iceoryx2_service(name, kind)
    _, acks = _iceoryx2_service(f"{name}-acks", "ack")
    subscriber = pieces.subscriber_builder().buffer_size(WINDOW).create()
    publisher = acks.publisher_builder().initial_max_slice_len(8).create()
    home = {name: np.empty_like(column) for name, column in piece(kind).columns.items()}
    counts: list[tuple[float, int]] = []
    started = time.perf_counter()
    while not counts or counts[-1][0] < seconds + 0.5:
        sample = subscriber.receive()
        if sample is None:
            if time.perf_counter() - started > 30.0:
                raise SystemExit("nothing came through iceoryx2")
            time.sleep(0)
            continue
        frame = ctypes.string_at(sample.payload_ptr, sample.payload().len())
        sample.delete()
        for column, values in decode_batch(frame).columns.items():
            home[column][...] = values
        if not counts:
            started = time.perf_counter()
        counts.append((time.perf_counter() - started, 1))
        if len(counts) % AN_ACK == 0:
            _send_iceoryx2(publisher, bytes(8))
    is_over.set()
    process.join(5.0)
    process.kill()
    process.join()
    del sample, subscriber, publisher, pieces, acks, node
    remove_shared(f"{name}_*")  # a management segment remains for each prefix
    return median_rate(counts)


def remove_shared(pattern: str) -> None:
    """Delete the files that peers left in shared memory."""
    for path in SHARED.glob(pattern):
        path.unlink(missing_ok=True)


def _fill_iceoryx2(kind: str, name: str, is_over: Any) -> None:
    import iceoryx2 as found

    found.set_log_level(found.LogLevel.Error)
    batch = piece(kind)
    node, pieces = _iceoryx2_service(name, kind)
    _, acks = _iceoryx2_service(f"{name}-acks", "ack")
    size = encode_batch(batch)[1].size_bytes
    publisher = pieces.publisher_builder().initial_max_slice_len(size).create()
    subscriber = acks.subscriber_builder().buffer_size(WINDOW).create()
    under_way = 0
    while not is_over.is_set():
        ack = subscriber.receive()
        if ack is not None:
            under_way -= AN_ACK
            ack.delete()
        elif under_way < WINDOW:
            buffers, _ = encode_batch(batch)
            _send_iceoryx2(publisher, b"".join(buffers))
            under_way += 1
        else:
            time.sleep(0)
    del node


def _iceoryx2_service(name: str, kind: str) -> tuple[Any, Any]:
    import iceoryx2 as found

    config = found.config.default()
    config.global_cfg.prefix = found.FileName.new(f"{name.removesuffix('-acks')}_")  # of files
    node = found.NodeBuilder.new().config(config).create(found.ServiceType.Ipc)
    builder = node.service_builder(found.ServiceName.new(name))
    service = builder.publish_subscribe(found.Slice[ctypes.c_uint8])
    service = service.subscriber_max_buffer_size(WINDOW).enable_safe_overflow(False)
    return node, service.open_or_create()


def _send_iceoryx2(publisher: Any, content: bytes) -> None:
    sample = publisher.loan_slice_uninit(len(content))
    ctypes.memmove(sample.payload_ptr, content, len(content))
    sample.assume_init().send()


def faster_fifo(kind: str, seconds: float, a_put: int, pickled: bool = False) -> float | None:
    """Return pieces per second through faster-fifo, as frames; None if it is not installed.

    Each put takes ``a_put`` pieces; each get takes and acknowledges all pieces that are there.
    With ``pickled`` the pieces are dicts of columns, which the queue pickles.
    """
    try:
        from faster_fifo import Queue
    except ImportError:
        return None
    size = 2 * WINDOW * (encode_batch(piece(kind))[1].size_bytes + 1024)
    pieces, acks, is_over = Queue(size), Queue(1 << 20), SPAWN.Event()
    args = kind, pieces, acks, is_over, a_put, pickled
    process = SPAWN.Process(target=_fill_fifo, args=args, daemon=True)
    process.start()
    home = {name: np.empty_like(column) for name, column in piece(kind).columns.items()}
    counts: list[tuple[float, int]] = []
    started = time.perf_counter()
    while not counts or counts[-1][0] < seconds + 0.5:
        found = pieces.get_many(timeout=30.0)
        for each in found:
            columns = each if pickled else decode_batch(each).columns
            for column, values in columns.items():
                home[column][...] = values
        acks.put(len(found))
        if not counts:
            started = time.perf_counter()
        counts.append((time.perf_counter() - started, len(found)))
    is_over.set()
    process.join(5.0)
    process.kill()
    return median_rate(counts)


def _fill_fifo(kind: str, pieces: Any, acks: Any, is_over: Any, a_put: int, pickled: bool) -> None:
    from queue import Empty

    batch, under_way = piece(kind), 0

    def content() -> Any:
        return batch.columns if pickled else b"".join(encode_batch(batch)[0])

    while not is_over.is_set():
        if under_way < WINDOW:
            pieces.put_many([content() for _ in range(a_put)])
            under_way += a_put
            continue
        try:
            under_way -= sum(acks.get_many(timeout=0.1))
        except Empty:
            continue


def bare_memory(kind: str, seconds: float, a_report: int, reports: int) -> float:
    """Return pieces per second through bare shared memory: the least work of any transport.

    Each piece is encoded into memory that stays mapped, and decoded there; small pieces are copied
    out first. One byte on a pipe requests a report of pieces, another byte announces it.
    """
    size = encode_batch(piece(kind))[1].size_bytes
    memory = SPAWN.RawArray("B", (reports + 1) * a_report * size)
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(
        target=_fill_memory, args=(kind, memory, size, a_report, theirs), daemon=True
    )
    process.start()
    theirs.close()
    view = memoryview(memory).cast("B")
    home = {name: np.empty_like(column) for name, column in piece(kind).columns.items()}
    counts: list[tuple[float, int]] = []
    for _ in range(reports):
        ours.send_bytes(b"?")
    for first in itertools.cycle(range(0, (reports + 1) * a_report, a_report)):
        ours.recv_bytes()
        ours.send_bytes(b"?")
        for number in range(first, first + a_report):
            frame = view[number * size : (number + 1) * size]
            columns = decode_batch(bytes(frame) if kind == "cartpole" else frame).columns
            if kind == "cartpole":
                for column, values in columns.items():
                    home[column][...] = values
        if not counts:
            started = time.perf_counter()
        counts.append((time.perf_counter() - started, a_report))
        if counts[-1][0] > seconds + 0.5:
            break
    ours.close()
    process.join(5.0)
    process.kill()
    return median_rate(counts)


def _fill_memory(kind: str, memory: Any, size: int, a_report: int, pipe: Any) -> None:
    batch, target = piece(kind), np.frombuffer(memory, np.uint8)
    algorithm = "xxh3-128" if kind == "cartpole" else "head"
    for number in itertools.cycle(range(len(memory) // size)):
        if number % a_report == 0:
            try:
                pipe.recv_bytes()
            except (EOFError, ConnectionError):
                return
        at = number * size
        for buffer in encode_batch(batch, algorithm=algorithm)[0]:
            source = np.frombuffer(buffer, np.uint8)
            target[at : at + source.size] = source
            at += source.size
        if number % a_report == a_report - 1:
            with contextlib.suppress(ConnectionError):
                pipe.send_bytes(b"!")


def di_engine(python: Path, kind: str, seconds: float, folder: Path) -> dict[str, float]:
    """Return pieces per second as ``di_engine.py`` measures them, run by another interpreter."""
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
