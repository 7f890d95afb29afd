"""Throughput of the transports, compared with the floor and peers, in one run.

    python benchmarks/transport.py                # all sections
    python benchmarks/transport.py trajectories policy --seconds 5
    python benchmarks/transport.py fanin --seconds 60
    python benchmarks/transport.py trajectories --di-engine-python /tmp/di-engine/bin/python

Sections:
    trajectories  64-step pieces from a collector process to a learner process: payloads through
                  files with checksums verified, metadata through the coordinator. CartPole
                  (2.9 KB) and Atari (3.6 MB). Floor: one process writes and reads bare files.
                  Then again at half that rate, for the delay from written to trainable.
    control       tasks per second to one worker process.
    fanin         metadata of 8 collector processes, 1 and 64 samples per message, then of 64
                  collectors in threads of 4 processes: messages per second, delays, errors,
                  and the slowest worker compared with the mean.
    home          64-step pieces of 64 collectors, threads of one process, over shared_memory into
                  the table of one learner: rows per second, the slowest collector against the mean.
    policy        6.7 MB published and read by 4 readers. Floor: bare safetensors, same folder.
    ray           pieces from a Ray actor to another process: the ray transport within a node and
                  as between two nodes, one plain actor call per piece, and a compiled graph with
                  eight executions in flight, as many as there are pieces in a report of ours.
    shared_memory pieces from process to process over shared_memory, compared with iceoryx2 and
                  faster-fifo (2.9 KB) and a bare copy (3.6 MB), and a policy of 6.7 MB to 4 readers
                  compared with bare copies through shared memory. All encode and decode the same
                  frames, copy pieces of 2.9 KB in and out, and acknowledge, with 256 in flight. All
                  write pieces one by one and announce several at once: 64 here, 16 or 1 with
                  faster-fifo; iceoryx2 has no such call. faster-fifo also carries dicts of columns,
                  which it pickles, as its users do. Ours are announced through a coordinator in a
                  third process, as in a run. Floor: only the frames, the copies and a pipe between
                  two processes, without ids, errors, leases, or memory that outlives its processes;
                  the report shows the goals next to the floor's figures.
    memory        in_memory: pieces moved per second, compared with pieces collected per second.

Every figure is the median of its repeats; only those of fanin are over its whole time. Compare
ratios, not absolute numbers. The figures of trajectories are medians over rounds in which all take
a turn. Ray, iceoryx2 and faster-fifo are measured if they are installed (requirements-peers.txt),
and DI-engine if an interpreter that has it is given (requirements-di-engine.txt). The report lists
what was not measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
from _buffers.measure import Report, ratio, say
from _transport.cluster import ROWS, Bench, Cluster, flask_fs, median_rate, piece, scratch
from _transport.fanin import fanin
from _transport.home import home
from _transport.over_ray import over_ray
from _transport.shared import shared_memory
from _transport.trajectories import learner, trajectories

from dingsdk.plugins import default_manager


def control(bench: Bench) -> None:
    with scratch(bench.disk) as folder:
        cluster = Cluster(Path(folder) / "run", [(learner, "cartpole")], ["learner"])
        window, counts, delays = [], [], []
        started = time.perf_counter()
        while time.perf_counter() - started < bench.seconds + 0.5:
            window.append(cluster.master.new_task("learner", {"name": "null"}).start())
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
    rate, delay_ms = median_rate(counts), float(np.median(delays)) * 1e3
    say(f"  256 in flight              {rate:>10,.0f} tasks/s")
    say(f"  one after the other        {delay_ms:10.2f} ms a task")
    bench.report.figure("control", "one worker", "tasks", tasks_s=rate, delay_ms=delay_ms)
    bench.report.goal("control", "one worker", "tasks/s", rate, 2000, at_least=True)


def policy(bench: Bench) -> None:
    import torch
    from safetensors.torch import load, save

    state = {f"layer{i}.weight": torch.randn(512, 409) for i in range(8)}
    size = sum(tensor.nbytes for tensor in state.values())
    with scratch(bench.disk) as folder:
        transport = flask_fs(Path(folder) / "run")
        writer = transport.policy_store()
        readers = [flask_fs(Path(folder) / "run") for _ in range(4)]
        stores = [reader.policy_store() for reader in readers]
        bare = Path(folder) / "bare.safetensors"
        ours, floor = [], []
        deadline = time.perf_counter() + bench.seconds
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
    load = f"{size:,} bytes, 4 readers"
    bench.report.times("policy", load, {"bare safetensors": floor, "flask_fs, verified": ours}, 1)
    bench.report.goal("policy", load, "ours / bare", ratio(ours, floor), 1.3)


def memory(bench: Bench) -> None:
    with scratch(bench.disk) as folder:
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
                if counts[-1][0] - 0.5 > bench.seconds / 4:
                    break
            rate = median_rate(counts)
            say(f"  {kind:<26} {rate:>10,.0f} /s, no copy")
            bench.report.figure("memory", kind, "in_memory", pieces_s=rate)
        transport.close()


SECTIONS = {
    "trajectories": trajectories,
    "control": control,
    "fanin": fanin,
    "home": home,
    "policy": policy,
    "shared_memory": shared_memory,
    "memory": memory,
    "ray": over_ray,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each figure")
    parser.add_argument("--rounds", type=int, default=3, help="of trajectories")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="disk that the files go to")
    parser.add_argument(
        "--di-engine-python", type=Path, metavar="FILE", help="interpreter that has DI-engine"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed or missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    unknown = set(args.sections) - SECTIONS.keys()
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    report = Report()
    bench = Bench(args.seconds, args.rounds, args.dir, args.di_engine_python, report)
    for name in args.sections or SECTIONS:
        SECTIONS[name](bench)
    report.summary()
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.json:
        found = {"figures": report.figures, "goals": report.goals, "missing": report.missing}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.strict and not report.is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
