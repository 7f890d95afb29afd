"""Commands of dingsdk in processes of their own, as on several hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "dingsdk"]
Program = subprocess.Popen[str]


class Site:
    """Starts the roles of one run, which share a folder, and kills those still running at the end.

    Args:
        folder: The folder.
        options: Options of all commands.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "run"
        self._folder = folder
        self._options = ["--config", "cartpole-dqn", "--transport", "flask_fs", *options]
        self._processes: list[Program] = []

    def start(self, role: str, *extra: str, before: Sequence[str] = (), **environ: str) -> Program:
        """Start ``dingsdk ROLE``, through the module and the options in ``before`` if given."""
        command = [sys.executable, "-m", *before, "dingsdk", role, "--data", str(self.data)]
        process = subprocess.Popen(
            [*command, *self._options, *extra],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self._folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        )  # fmt: skip
        self._processes.append(process)
        return process

    def start_worker(self, role: str, address: str, *extra: str, **options: Any) -> Program:
        return self.start(role, "--coordinator", address, *extra, **options)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def read_until(process: Program, pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(pattern, line)
        if found is not None:
            return found
    pytest.fail(f"it never printed {pattern!r}: {process.communicate()[1]}")


def iterations(process: Program, more_than: int) -> int:
    """Wait until a process shows more iterations; return how many it shows."""
    while True:
        found = read_until(process, r"([\d,]+) iterations")
        count = int(found[1].replace(",", ""))
        if count > more_than:
            return count
