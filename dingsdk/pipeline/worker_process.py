"""The main function of a worker process; started by ``ProcessWorkers``.

It imports nothing heavy before it can report what goes wrong with that.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from dingsdk.plugins import Snapshot
from dingsdk.plugins.blame import error_text

OUT_OF_MEMORY = 75
"""Exit code of a worker that left because of its memory, and should be started again."""
LEAVE_S = 8.0
"""How long a stopped worker may take to end by itself."""
HANDLED = {signal.SIGINT, signal.SIGTERM}
ADDRESS = b"address "
"""How a message begins that says whom to join."""
_MESSAGE_BYTES = 4096
"""Largest message to a worker from the process that started it."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker process is told. All plain data.

    Attributes:
        cfg: The config as workers get it.
        address: The coordinator's; empty where the worker is told once there is one.
        crash_file: Where the interpreter writes its stacks when it crashes.
        snapshot: The types that were registered in the parent.
    """

    role: str
    worker_id: str
    cfg: Mapping[str, Any]
    address: str
    run_dir: Path
    crash_file: Path
    snapshot: Snapshot


def worker_main(spec: WorkerSpec, link: Connection) -> None:
    """Run the worker until the parent says stop, or is gone; never returns.

    The link brings the address, where the spec has none, and one message to stop.
    """
    leave(_run(spec, link))


def leave(exit_code: int) -> NoReturn:
    """End this process without the teardown of the interpreter.

    torch's takes 0.5 s, and more where many end at once (2026-11), which is waited for after
    Ctrl-C.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextlib.contextmanager
def crashes_recorded(path: Path) -> Iterator[None]:
    """Have the interpreter write its stacks to a file where it crashes; files are private."""
    os.umask(0o077)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()


def _run(spec: WorkerSpec, link: Connection) -> int:
    stop, is_at_work = threading.Event(), threading.Event()
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    if spec.address:
        addresses.put(spec.address)

    def end() -> None:
        stop.set()
        addresses.put("")

    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: end())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    watch = threading.Thread(
        target=_obey, args=(link, addresses.put, end, is_at_work), name="parent-watch", daemon=True
    )
    watch.start()

    def tell(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            link.send_bytes(json.dumps(message).encode())

    return work(spec, stop, tell, is_at_work.set, addresses.get)


def work(
    spec: WorkerSpec,
    stop: threading.Event,
    tell: Callable[[dict[str, Any]], None],
    on_imported: Callable[[], None] = lambda: None,
    find_address: Callable[[], str] | None = None,
) -> int:
    """Be a worker of a run until ``stop``, in a process that is the worker's alone.

    Args:
        spec: What it is told.
        stop: Set by the caller when the worker is to leave.
        tell: Called with ``{"event": "joined"}`` and ``{"event": "failed", ...}``.
        on_imported: Called once all is imported; from then on the worker looks at ``stop``.
        find_address: Waits for the coordinator's address, and returns it; empty where the worker is
            to leave. None: the spec has it.

    Returns:
        The exit code of such a process.
    """
    try:
        with crashes_recorded(spec.crash_file):
            from dingsdk.config import to_easydict
            from dingsdk.pipeline.worker import run_worker
            from dingsdk.plugins import default_manager

            default_manager().restore(spec.snapshot)
            on_imported()
            address = spec.address if find_address is None else find_address()
            should_restart = bool(address) and run_worker(
                spec.role,
                to_easydict(spec.cfg),
                address,
                spec.worker_id,
                spec.run_dir,
                stop,
                lambda: tell({"event": "joined"}),
            )
    except BaseException as error:
        tell(
            {
                "event": "failed",
                "text": error_text(error),
                "traceback": "".join(traceback.format_exception(error)),
                "is_user_mistake": bool(getattr(error, "is_user_mistake", False)),
            }
        )
        return 1
    return OUT_OF_MEMORY if should_restart else 0


def _obey(
    link: Connection,
    take_address: Callable[[str], None],
    end: Callable[[], None],
    is_at_work: threading.Event,
) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent is dead: that says stop as well
        while (message := link.recv_bytes(_MESSAGE_BYTES)).startswith(ADDRESS):
            take_address(message.removeprefix(ADDRESS).decode())
    end()
    if not is_at_work.is_set():
        # Imports may take longer than `LEAVE_S` on a busy machine, and leave nothing to end.
        os._exit(0)
    # A job that does not end must not outlive the run.
    threading.Event().wait(LEAVE_S)
    os._exit(1)
