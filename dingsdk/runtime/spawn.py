"""Starts new processes, which import the script that the parent was started with.

Importing torch takes seconds of a processor, and a run has four processes or more. So the processes
of a run are forked from a *fork server*: a process that has imported what they need and nothing of
the user's, and has done nothing else. Where it cannot be used, they are started by ``spawn``.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.spawn
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import (
    ForkServerContext,
    ForkServerProcess,
    SpawnContext,
    SpawnProcess,
)
from pathlib import Path
from typing import Any

from dingsdk.errors import ConfigError

UNGUARDED = 76
"""Exit code of a new process if importing the user's script would start another run."""
UNGUARDED_TEXT = (
    "a worker process imports the script that started the run, and the script would start another "
    'run; put what it does below `if __name__ == "__main__":`'
)
_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "dingsdk"
_starts = 0
"""Number of ``signals_blocked`` blocks that are active."""
_starts_lock = threading.Lock()


class _Process(SpawnProcess):
    def run(self) -> None:
        _drop_safe_path()  # it is not for the processes that this one starts
        super().run()


class _Context(SpawnContext):
    Process = _Process


class _ForkedProcess(ForkServerProcess):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)  # the server has an older one

    def start(self) -> None:
        for pause_s in (0.05, 0.2, 1.0):
            try:
                super().start()
                return
            except (EOFError, ConnectionError):  # the server was killed; the next try replaces it
                time.sleep(pause_s)
        super().start()

    def run(self) -> None:
        atexit.unregister(os._exit)  # of the server
        os.environ.clear()
        os.environ.update(self._environment)
        _drop_safe_path()
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        super().run()


class _ForkContext(ForkServerContext):
    Process = _ForkedProcess


_READ_AT_IMPORT = (
    "CUDA",
    "GOMP",
    "KMP",
    "LD_",
    "MKL",
    "NUMBA",
    "OMP",
    "OPENBLAS",
    "PYTHON",
    "TORCH",
)
"""Prefixes of environment variables that imported libraries have read."""
_server_environment: dict[str, str] | None = None
"""Variables with these prefixes when the fork server started; None if there is no fork server."""


def _read_at_import() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_IMPORT)}
    found.pop(_SAFE_PATH, None)
    return found


def begin_fork_server(modules: Sequence[str]) -> None:
    """Start a process from which others can be forked, and return before it has imported modules.

    It ends with this process. A second call, and a call in a process that may start no others, does
    nothing.
    """
    global _server_environment
    process = multiprocessing.current_process()
    if _server_environment is not None or process.daemon or getattr(process, "_inheriting", False):
        return
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload([*modules, "dingsdk.runtime.fork_exit"])
        with signals_blocked():
            forkserver.ensure_running()
        _server_environment = _read_at_import()


def process_context(path: str) -> SpawnContext | ForkServerContext:
    """Return the context for the processes of a run; arguments and errors as ``spawn_context``."""
    spawn = spawn_context(path)
    return _ForkContext() if _server_environment == _read_at_import() else spawn


def _drop_safe_path() -> None:
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]


def spawn_context(path: str) -> SpawnContext:
    """Return the multiprocessing context that starts new processes.

    Args:
        path: The config key that needs the processes.

    Raises:
        ConfigError: this process may not start others, or the script that they would import is not
            a file.
    """
    leave_if_importing()
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            f"{path} asks for new processes, and this one, a daemon of multiprocessing, may start "
            "none; start it with daemon=False, or by concurrent.futures.ProcessPoolExecutor in "
            "place of multiprocessing.Pool",
            path=path,
        )
    script = multiprocessing.spawn.get_preparation_data("").get("init_main_from_path")
    if script is not None and not Path(script).is_file():
        raise ConfigError(
            f"{path} asks for new processes, which import the script that was started, and there "
            f"is no file {script}; save it as a file",
            path=path,
        )
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # The new process would have to know it: in a worker of joblib it is "loky".
        multiprocessing.set_start_method("spawn", force=True)
    return _Context()


@contextmanager
def _safe_path() -> Iterator[None]:
    """In the block, new processes do not import from the working directory while they start.

    By default they look there first, even for the standard library, until they get the module path
    of this process. The working directory may be a run folder from elsewhere.
    """
    global _starts
    with _starts_lock:
        _starts += 1
        os.environ[_SAFE_PATH] = os.environ.get(_SAFE_PATH) or _OURS
    try:
        yield
    finally:
        with _starts_lock:
            _starts -= 1
            if not _starts:
                _drop_safe_path()


@contextmanager
def signals_blocked(
    signals: Iterable[int] = (signal.SIGINT, signal.SIGHUP),
) -> Iterator[None]:
    """Block signals while child processes start; by default they then ignore their terminal.

    A terminal sends Ctrl-C to the whole process group, and SIGHUP when it is closed, but the run
    decides when its processes end. A child process inherits the blocked signals of the thread that
    started it.
    """
    with _safe_path():
        # Before the block: its own process unblocks them, and ignores Ctrl-C.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_at_top(target: object) -> bool:
    """Whether a class or function is defined at the top level of its ``__module__``."""
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    name = getattr(target, "__qualname__", "")
    return bool(name) and vars(module or object).get(name) is target


def is_importable(target: object, *, has_script: bool = True) -> bool:
    """Whether new processes can import a class or function from its ``__module__``.

    Args:
        target: The class or function.
        has_script: Whether the processes import the script, as those of ``spawn_context`` do.
    """
    if not is_at_top(target):
        return False
    if target.__module__ != "__main__":
        return hasattr(sys.modules[target.__module__], "__file__")
    return has_script and is_main_importable()


def is_main_importable() -> bool:
    """Whether new processes can import ``__main__`` of this one."""
    # multiprocessing does not import shells, notebooks, zip files or the __main__ of a package.
    script = multiprocessing.spawn.get_preparation_data("")
    name = script.get("init_main_from_name", "")
    return "init_main_from_path" in script or name.rpartition(".")[2] not in ("", "__main__")


def leave_if_importing() -> None:
    """End the process if it is a new one that is importing the user's script; see ``UNGUARDED``."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNGUARDED)  # a forked process would give SystemExit another exit code


def check_guarded(exit_code: int | None, path: str) -> None:
    """Raise ConfigError for the key ``path`` if ``leave_if_importing`` ended a process."""
    if exit_code == UNGUARDED:
        raise ConfigError(UNGUARDED_TEXT, path=path) from None  # not from the closed connection


def how_it_ended(exit_code: int | None) -> str:
    """Return what the exit code of a process means, for messages; None if it has none yet."""
    if exit_code is None:
        return "closed its connection"
    if exit_code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"killed by {names.get(-exit_code, f'signal {-exit_code}')}"
    return f"ended with exit code {exit_code}"
