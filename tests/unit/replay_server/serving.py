"""A replay server as a process, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dingsdk import ReplayClient
from dingsdk.data import SampleBatch

WAIT_S = 30.0


class ServerProcess:
    """A process that runs `dingsdk replay-server`."""

    def __init__(self, path: Path, *sets: str, port: int = 0) -> None:
        options = [option for each in sets for option in ("--set", each)]
        command = ["replay-server", "--data", str(path), "--port", str(port), *options]
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dingsdk", *command], stdout=subprocess.PIPE, text=True
        )
        self.lines = [self._line() for _ in range(3)]
        self.address = self.lines[0].removeprefix("replay server: ")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, **options: Any) -> ReplayClient:
        return ReplayClient(self.address, self.path, **options)

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.end()


def rows(first: int, count: int = 64) -> SampleBatch:
    """Return rows with consecutive numbers."""
    number = np.arange(first, first + count, dtype=np.int64)
    obs = np.repeat(number[:, None], 4, axis=1).astype(np.float32)
    return SampleBatch({"obs": obs, "number": number})


def numbers(batch: Any) -> list[int]:
    return sorted(batch.columns["number"].tolist())
