"""Fixtures: a transport with clean-up, programs in other processes, and leak checks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dingsdk_shared_memory.run_memory import remove
from dingsdk_shared_memory.transport import SharedMemoryTransport

from dingsdk import SampleBatch
from dingsdk.testing import open_files
from dingsdk.testing.transport_bench import Recorder

GRACE_S = 5.0
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    threads, files = set(threading.enumerate()), open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(GRACE_S)
        assert not thread.is_alive(), f"leaked thread {thread.name}"
    assert open_files() <= files, "leaked files"


def listener() -> Recorder:
    """Return a listener that records what a master end reports."""
    return Recorder(threading.Condition(), GRACE_S)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def transport(run_dir: Path) -> Iterator[SharedMemoryTransport]:
    made = SharedMemoryTransport({"lost_after_s": 3.0}, run_dir)
    yield made
    made.close()
    remove(made.data_dir)


def a_batch(rows: int = 64, width: int = 4) -> SampleBatch:
    obs = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    return SampleBatch({"obs": obs, "done": np.zeros(rows, np.bool_)})


class Program:
    """A Python program in a new process, with ``transport`` for a run folder.

    Its ``say`` prints a line, for which ``expect`` waits. At its end it waits to be killed, which
    happens at the end of the ``with`` block at the latest.
    """

    def __init__(self, run_dir: Path, source: str) -> None:
        prelude = (
            "import pathlib, sys, threading\n"
            "from dingsdk_shared_memory.transport import SharedMemoryTransport\n"
            "from plugin_tests import a_batch, listener\n"
            "transport = SharedMemoryTransport({'lost_after_s': 3.0}, pathlib.Path(sys.argv[1]))\n"
            "def say(text): print(text, flush=True)\n"
        )
        tests = Path(__file__)
        loader = (
            "import importlib.util as u, sys\n"
            f"spec = u.spec_from_file_location('plugin_tests', {str(tests)!r})\n"
            "module = u.module_from_spec(spec); sys.modules['plugin_tests'] = module\n"
            "spec.loader.exec_module(module)\n"
        )
        script = loader + prelude + textwrap.dedent(source) + "\nthreading.Event().wait()\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(run_dir)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def expect(self, text: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == text

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
