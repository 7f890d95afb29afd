"""Throughput of DI-engine's own files and tasks. Run it with an interpreter that has DI-engine.

    PYTHON benchmarks/_transport/di_engine.py '{"steps": 64, "seconds": 4, "folder": "/tmp/x",
        "columns": {"obs": [[4], "float32"]}}'

Prints pieces per second as JSON. *files*: one process saves and another reads, with the functions
that its collectors and learners call, one file per piece. *a file a step*: the same with one file
per step, as its collectors write unless a policy unrolls. *tasks and files*: one file per piece,
which a slave saves and reports to a master, and another slave reads. Nothing is compressed, as the
values are random; DI-engine has no checksums. Two things that slow it down are left out: its
workers wait by sleeping 0.1 s, and its servers log every request.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Its files are pickles of tensors and numpy arrays, which torch.load rejects by default today.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

SPAWN = multiprocessing.get_context("spawn")


def transitions(plan: dict[str, Any]) -> list[dict[str, Any]]:
    import numpy as np
    import torch

    rng = np.random.default_rng(0)

    def column(shape: list[int], dtype: str) -> Any:
        return torch.from_numpy(rng.integers(0, 255, shape).astype(dtype))

    return [
        {name: column(*form) for name, form in plan["columns"].items()}
        | {"action": torch.zeros(1, dtype=torch.int64), "reward": torch.ones(1), "done": False}
        for _ in range(plan["steps"])
    ]


def save(path: str, sample: Any) -> None:
    from ding.utils import save_file

    save_file(path, sample, use_lock=False)


def load(path: str) -> Any:
    from ding.utils import read_file

    return read_file(path, use_lock=False)


def files(plan: dict[str, Any], is_per_piece: bool) -> float:
    """Return pieces per second from a process that saves them to one that reads them."""
    names, is_over = SPAWN.Queue(maxsize=8 if is_per_piece else 8 * plan["steps"]), SPAWN.Event()
    writer = SPAWN.Process(target=_write, args=(plan, is_per_piece, names, is_over), daemon=True)
    writer.start()
    unit = plan["steps"] if is_per_piece else 1
    count, started = 0, 0.0
    for name in iter(names.get, None):
        load(name)
        Path(name).unlink()
        now = time.perf_counter()
        if not started:
            started = now  # the time of the first piece is mostly imports
            continue
        count += unit
        if now - started > plan["seconds"]:
            break
    is_over.set()
    while writer.is_alive():  # the writer cannot exit while the queue holds items
        with contextlib.suppress(queue.Empty):
            names.get(timeout=0.1)
    return count / plan["steps"] / (now - started)


def _write(plan: dict[str, Any], is_per_piece: bool, names: Any, is_over: Any) -> None:
    steps = transitions(plan)
    for number in itertools.count():
        for index, sample in enumerate([steps] if is_per_piece else steps):
            path = f"{plan['folder']}/{number}-{index}"
            save(path, sample)
            names.put(path)
        if is_over.is_set():
            return


def tasks(plan: dict[str, Any]) -> float:
    """Return pieces per second from one slave to another, with a master in this process."""
    from ding.interaction import Master

    logging.getLogger("werkzeug").disabled = True
    ports = [_free_port() for _ in range(3)]
    stop = SPAWN.Event()
    slaves = [SPAWN.Process(target=_slave, args=(plan, port, stop)) for port in ports[1:]]
    for each in slaves:
        each.start()
    address = f"http://127.0.0.1:{ports[0]}"  # the default, this host's address, may not work
    master = Master("127.0.0.1", ports[0], my_address=address)
    master.start()
    found: queue.Queue[Any] = queue.Queue(maxsize=8)
    is_over = threading.Event()
    try:
        _wait_for(ports[1:])
        with (
            master.new_connection("collector", "127.0.0.1", ports[1]) as collector,
            master.new_connection("learner", "127.0.0.1", ports[2]) as learner,
        ):

            def gather() -> None:
                while not is_over.is_set():
                    meta = collector.new_task({"name": "data"}).start().join().result
                    while not is_over.is_set():
                        with contextlib.suppress(queue.Full):
                            found.put(meta, timeout=0.1)
                            break

            thread = threading.Thread(target=gather)
            thread.start()
            count, started = -1, time.perf_counter()
            while time.perf_counter() - started < plan["seconds"]:
                meta = found.get(timeout=60.0)
                learner.new_task({"name": "learn", "data": [meta]}).start().join()
                Path(meta["data_id"]).unlink()
                count += 1
                if count == 0:
                    started = time.perf_counter()
            rate = count / (time.perf_counter() - started)
            is_over.set()
            thread.join()
        return rate
    finally:
        stop.set()
        for each in slaves:
            each.join(20.0)
            each.kill()
        master.close()


def _slave(plan: dict[str, Any], port: int, stop: Any) -> None:
    from ding.interaction import Slave

    logging.getLogger("werkzeug").disabled = True
    steps, numbers = transitions(plan), itertools.count()

    class Worker(Slave):
        def _process_task(self, task: dict[str, Any]) -> dict[str, Any]:
            if task["name"] == "data":
                path = f"{plan['folder']}/task-{next(numbers)}"
                save(path, steps)
                return {"data_id": path, "policy_iter": 0, "unroll_len": len(steps)}
            for meta in task["data"]:
                load(meta["data_id"])
            return {"learner_step": 0}

    with Worker("127.0.0.1", port):
        stop.wait(600.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(ports: list[int]) -> None:
    deadline = time.monotonic() + 60.0
    for port in ports:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"no slave on port {port} within 60 s")
            time.sleep(0.1)


def main() -> None:
    plan = json.loads(sys.argv[1])
    Path(plan["folder"]).mkdir(parents=True, exist_ok=True)
    rates = {
        "files": files(plan, True),
        "a file a step": files(plan, False),
        "tasks and files": tasks(plan),
    }
    sys.stdout.write(f"\n{json.dumps(rates)}\n")
    sys.stdout.flush()
    os._exit(0)  # threads of its servers would keep the process alive


if __name__ == "__main__":
    main()
