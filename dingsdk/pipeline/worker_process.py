"""The main function of a worker process; started by ``ProcessWorkers``.

Large modules are imported inside functions, so that errors of their import can be reported.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from dingsdk.errors import error_text, traceback_text
from dingsdk.plugins import Snapshot
from dingsdk.runtime.files import ensure_dir, guarded, open_private

OUT_OF_MEMORY = 75
"""Exit code of a worker that left because of its memory, and should be started again."""
LEAVE_S = 8.0
"""How long a stopped worker may take to end by itself."""
HANDLED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The arguments of a worker process, as plain data.

    Attributes:
        cfg: The config for workers.
        address: Address of the coordinator; if empty, the worker gets it later over the link.
        snapshot: The types that were registered in the parent.
    """

    role: str
    worker_id: str
    cfg: Mapping[str, Any]
    address: str
    run_dir: Path
    snapshot: Snapshot

    @property
    def crash_file(self) -> Path:
        """The file to which the interpreter writes its stacks if it crashes."""
        return crash_file(self.run_dir, self.worker_id)


def crash_file(run_dir: Path, worker_id: str) -> Path:
    """Return the path of the file for the crash report of a process."""
    return run_dir / "log" / f"{worker_id}.crash"


def worker_main(spec: WorkerSpec, link: Connection) -> None:
    """Run the worker until the parent tells it to stop or has ended; never returns.

    The parent sends the address over the link, if the spec has none, and later an empty one, to
    stop the worker.
    """
    leave(_run(spec, link))


def leave(exit_code: int) -> NoReturn:
    """End this process without the teardown of the interpreter.

    The teardown of torch takes 0.5 s, or more if many processes end at once (2026-11), and the user
    would wait for it after Ctrl-C.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextlib.contextmanager
def crashes_recorded(path: Path) -> Iterator[None]:
    """In the block, write the interpreter's stacks to a file if it crashes; set a private umask."""
    os.umask(0o077)
    ensure_dir(path.parent)
    with open(path, "w", opener=open_private) as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()


def _run(spec: WorkerSpec, link: Connection) -> int:
    stop = threading.Event()
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    if spec.address:
        addresses.put(spec.address)

    def end() -> None:
        stop.set()
        addresses.put("")

    # Ctrl-C and a closed terminal reach the whole process group; only the parent reacts to them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: end())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    watch = (link, addresses.put, end)
    threading.Thread(target=_obey, args=watch, name="parent-watch", daemon=True).start()

    def tell(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            link.send(message)

    return work(spec, stop, tell, addresses.get)


def work(
    spec: WorkerSpec,
    stop: threading.Event,
    tell: Callable[[dict[str, Any]], None],
    find_address: Callable[[], str] | None = None,
) -> int:
    """Run a worker until ``stop`` is set, in a process that runs nothing else.

    Args:
        spec: The arguments of the worker.
        stop: Set by the caller when the worker has to leave.
        tell: Called with ``{"event": "joined"}`` and ``{"event": "failed", ...}``.
        find_address: Waits for the coordinator's address and returns it, or ``""`` if the worker
            has to leave. None if the spec contains the address.

    Returns:
        The exit code for the process.
    """
    try:
        with guarded(spec.run_dir), crashes_recorded(spec.crash_file):
            from dingsdk.config import to_easydict
            from dingsdk.pipeline.worker import run_worker
            from dingsdk.plugins import default_manager

            default_manager().restore(spec.snapshot)
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
                "traceback": traceback_text(error),
                "is_user_mistake": bool(getattr(error, "is_user_mistake", False)),
            }
        )
        return 1
    return OUT_OF_MEMORY if should_restart else 0


def _obey(link: Connection, take_address: Callable[[str], None], end: Callable[[], None]) -> None:
    with contextlib.suppress(EOFError, OSError):  # the parent has ended: stop, too
        while address := link.recv():
            take_address(address)
    end()
    # Imports that take long, or a job that does not end, must not outlive the run.
    threading.Event().wait(LEAVE_S)
    os._exit(0)
