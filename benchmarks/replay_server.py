"""The replay server compared with Reverb, over loopback, in one run.

    python benchmarks/replay_server.py
    python benchmarks/replay_server.py --reverb-python /tmp/reverb/bin/python --rounds 9

Sections:
    insert      CartPole transitions (45 bytes) per second, from one client process to the server
                in chunks of 64. Ours waits for the acknowledgement of each chunk, which is then in
                the log. Reverb's writers have up to one chunk in flight, and keep it in memory.
    sample      Transitions per second in batches of 256, drawn uniformly, as numpy columns.
    checkpoint  A checkpoint of a full buffer of a million such rows, while one thread inserts and
                another samples and sets priorities: the longest hold of the buffer's lock
                (processor time), and the longest insert with and without a checkpoint. The worst
                round counts. Measured with the oldest rows removed first, and with random removal
                (``_replay/random_remover.py``).

Both take turns in one run; ratios are medians over the rounds. Reverb needs a separate interpreter
(Python 3.11, tensorflow 2.14)::

    python3.11 -m venv /tmp/reverb
    /tmp/reverb/bin/pip install 'dm-reverb[tensorflow]==0.14.*' 'numpy<2'

The fastest of Reverb's writers and samplers counts (see ``_replay/reverb_peer.py``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _buffers.measure import Report, say
from _replay.random_remover import RandomRemover

from dingsdk import ReplayClient
from dingsdk.data import SampleBatch
from dingsdk.data.channel import encode_value
from dingsdk.plugins import default_manager
from dingsdk.worker.replay_server.messages import ROWS_KIND
from dingsdk.worker.replay_server.served_buffer import ServedBuffer

CHUNK, BATCH, CAPACITY = 64, 256, 1_000_000
GOALS = {"insert": 10.0, "sample": 5.0}
PAUSE_MS = 10.0
PEER = Path(__file__).parent / "_replay" / "reverb_peer.py"
Turn = Callable[[str, float], float]


def rows(count: int) -> SampleBatch:
    return SampleBatch(
        {
            "obs": np.zeros((count, 4), np.float32),
            "next_obs": np.zeros((count, 4), np.float32),
            "action": np.zeros(count, np.int64),
            "reward": np.zeros(count, np.float32),
            "done": np.zeros(count, np.bool_),
        }
    )


@contextmanager
def process(*command: str) -> Iterator[Any]:
    """Yield a process with pipes; on exit close its input, which makes it end."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        if "dingsdk" in command:
            child.terminate()
        try:
            child.wait(10.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def ours(folder: Path) -> Iterator[Turn]:
    """Yield a function that measures our server: (operation, seconds) -> transitions per second."""
    size = f"replay_buffer_size={CAPACITY}"
    command = (sys.executable, "-m", "dingsdk", "replay-server", "--data", str(folder))
    with process(*command, "--set", size) as server:
        address = server.stdout.readline().split()[-1]
        with ReplayClient(address, folder) as client:
            chunk = rows(CHUNK)

            def turn(name: str, seconds: float) -> float:
                begun, count = time.perf_counter(), 0
                while time.perf_counter() - begun < seconds:
                    if name == "insert":
                        client.insert(chunk)
                        count += CHUNK
                    else:
                        count += len(client.sample(BATCH) or ())
                return count / (time.perf_counter() - begun)

            yield turn


@contextmanager
def reverb(python: str) -> Iterator[tuple[list[str], Turn]]:
    """Yield Reverb's operations, and the function that measures them."""
    with process(python, str(PEER), "serve") as server:
        port = server.stdout.readline().strip()
        with process(python, str(PEER), "client", port) as client:
            names = client.stdout.readline().split()

            def turn(name: str, seconds: float) -> float:
                client.stdin.write(f"{name} {seconds}\n")
                client.stdin.flush()
                count, took = client.stdout.readline().split()
                return int(count) / float(took)

            yield names, turn


def compare(args: argparse.Namespace, report: Report) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.dir)))
        turns: dict[str, Callable[[float], float]] = {}
        mine = stack.enter_context(ours(folder / "served"))
        for section in GOALS:
            turns[section] = lambda seconds, name=section: mine(name, seconds)
        if args.reverb_python:
            names, peer = stack.enter_context(reverb(args.reverb_python))
            for each in names:
                turns[each] = lambda seconds, name=each: peer(name, seconds)
        else:
            report.missing.append("Reverb: no --reverb-python was given")
        found: dict[str, list[float]] = {name: [] for name in turns}
        for turn in turns.values():
            turn(args.seconds)  # fills tables, warms caches
        for _ in range(args.rounds):
            for name, turn in turns.items():
                found[name].append(turn(args.seconds))
    for name, rates in found.items():
        say(f"{name:20} {statistics.median(rates):12,.0f} transitions/s")
    for section, goal in GOALS.items():
        peers = [name for name in found if name.startswith(f"{section}-")]
        if not peers:
            continue
        best = max(peers, key=lambda name: statistics.median(found[name]))
        pairs = zip(found[section], found[best], strict=True)
        times = statistics.median(a / b for a, b in pairs)
        say(f"{section}: {times:.1f} x Reverb's {best} (goal {goal:g})")
        report.goals.append({"name": section, "peer": best, "ratio": times, "goal": goal})
    report.figures.append({name: statistics.median(rates) for name, rates in found.items()})


def time_locks(buffer: ServedBuffer) -> list[float]:
    """Return a list that records how long each checkpoint holds the lock (processor seconds)."""
    held: list[float] = []
    snapshot = buffer.table.snapshot

    @contextmanager
    def timed() -> Iterator[Any]:
        with snapshot() as now:
            begun = time.thread_time()
            try:
                yield now
            finally:
                held.append(time.thread_time() - begun)

    buffer.table.snapshot = timed  # type: ignore[method-assign]
    return held


def checkpoint(args: argparse.Namespace, report: Report, kind: str, remover: str) -> None:
    name = kind if remover == "fifo" else f"{kind} with remover {remover}"
    frame = memoryview(b"".join(bytes(each) for each in encode_value(ROWS_KIND, rows(CHUNK))))
    big = memoryview(b"".join(bytes(each) for each in encode_value(ROWS_KIND, rows(10_000))))
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        cfg = {
            "type": kind,
            "replay_buffer_size": args.rows,
            "remover": {"type": remover},
        }
        with ServedBuffer(cfg, Path(folder)) as buffer:
            numbers = iter(range(1, 1 << 40))
            held = time_locks(buffer)
            for _ in range(args.rows // 10_000):
                buffer.insert("0" * 32, next(numbers), 0, big, 0.0)

            def insert_while(is_on: Callable[[], bool]) -> list[float]:
                took = []
                while is_on():
                    begun = time.perf_counter()
                    buffer.insert("0" * 32, next(numbers), 0, frame, 0.0)
                    took.append(time.perf_counter() - begun)
                    time.sleep(0.001)
                return took

            is_over = threading.Event()

            def learn() -> None:
                while not is_over.wait(0.001):
                    batch: Any = buffer.table.sample(BATCH, cur_learner_iter=0)
                    if batch is not None and "replay_unique_id" in batch.columns:
                        keys = ("replay_unique_id", "replay_buffer_idx")
                        info = {key: batch.columns[key] for key in keys}
                        buffer.table.update({**info, "priority": np.ones(BATCH)})

            learner = threading.Thread(target=learn)
            learner.start()
            worst = 0.0
            for _ in range(args.rounds):
                held.clear()
                saver = threading.Thread(target=buffer.save)
                begun = time.perf_counter()
                saver.start()
                during = insert_while(saver.is_alive)
                saver.join()
                save_s = time.perf_counter() - begun
                until = time.perf_counter() + save_s
                beside = insert_while(lambda until=until: time.perf_counter() < until)
                figures = {
                    "save_ms": 1e3 * save_s,
                    "longest_hold_ms": 1e3 * max(held),
                    "longest_insert_ms": 1e3 * max(during),
                    "longest_insert_without_ms": 1e3 * max(beside),
                }
                text = ", ".join(f"{name} {value:.1f}" for name, value in figures.items())
                say(f"checkpoint of {args.rows:,} rows, {name}: {text}")
                report.figures.append({"section": "checkpoint", "buffer": name, **figures})
                worst = max(worst, figures["longest_insert_ms"])
            is_over.set()
            learner.join()
            say(f"checkpoint, {name}: the worst insert took {worst:.1f} ms (goal {PAUSE_MS:g})")
            goal = {"name": f"checkpoint, {name}", "worst_ms": worst, "goal_ms": PAUSE_MS}
            report.goals.append(goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reverb-python", help="interpreter that has dm-reverb")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=CAPACITY, help="of the checkpoint")
    parser.add_argument("--buffer", nargs="+", default=["naive", "advanced"], help="its types")
    parser.add_argument("--remover", nargs="+", default=["fifo", "random"], help="its removers")
    parser.add_argument("--only-checkpoint", action="store_true")
    parser.add_argument("--dir", help="folder for logs and checkpoints")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    report = Report()
    default_manager().registry("removers").register("random", RandomRemover)
    if not args.only_checkpoint:
        compare(args, report)
    for kind, remover in itertools.product(args.buffer, args.remover):
        checkpoint(args, report, kind, remover)
    if args.json:
        facts = {"figures": report.figures, "goals": report.goals, "missing": report.missing}
        args.json.write_text(json.dumps(facts, indent=1))
    for line in report.missing:
        say(f"not measured: {line}")


if __name__ == "__main__":
    main()
