"""A coordinator that is killed and started again, while its workers live."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dingsdk.worker.learner.checkpoint import load_checkpoint

from .process_cluster import PATIENCE_S

RUN = [
    "--config", "cartpole-dqn", "--transport", "flask_fs",
    "--set", "env.stop_value=.inf", "--set", "env.evaluator_env_num=2",
    "--set", "env.n_evaluator_episode=2", "--set", "system.coordinator.lease_s=5",
    "--set", "system.validate_state=true",
]  # fmt: skip
PROGRAM = [sys.executable, "-c", "import sys; from dingsdk.cli import main; sys.exit(main())"]


class Hosts:
    """Processes of one run, started by hand."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "run"
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, role: str, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*PROGRAM, role, *RUN, "--data", str(self.data), *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self._folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "status.json").read_text())
        return found

    def log(self, worker_id: str) -> str:
        return "".join(path.read_text() for path in (self.data / "log").rglob("*.txt"))


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(pattern, line)
        if found is not None:
            return found
    pytest.fail(f"it never printed {pattern!r}: {process.communicate()[1]}")


def iterations(process: subprocess.Popen[str], more_than: int) -> int:
    while True:
        found = read_until(process, r"([\d,]+) iterations")
        count = int(found[1].replace(",", ""))
        if count > more_than:
            return count


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 12.0])
def test_workers_go_on_with_a_coordinator_that_was_killed(tmp_path: Path, pause_s: float) -> None:
    hosts = Hosts(tmp_path)
    try:
        first = hosts.start("coordinator")
        address = read_until(first, r"^coordinator: (\S+)$")[1]
        port = address.rpartition(":")[2]
        learner = hosts.start("learner", "--coordinator", address, "--id", "l0")
        hosts.start("collector", "--coordinator", address, "--id", "c0")
        done = iterations(first, 100)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
        saved = [path.name for path in (hosts.data / "ckpt").glob("iteration_*")]
        time.sleep(pause_s)

        second = hosts.start("coordinator", "--port", port)
        again = iterations(second, done)
        # It goes on with the weights that it has: no checkpoint was written, and none read.
        assert [path.name for path in (hosts.data / "ckpt").glob("iteration_*")] == saved
        second.send_signal(signal.SIGINT)
        _, err = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 130, err
        assert "Traceback" not in err
        assert learner.wait(PATIENCE_S) == 0
        result = json.loads((hosts.data / "result.json").read_text())
        assert result["train_iter"] >= again > done
        assert load_checkpoint(hosts.data / "ckpt").iteration == result["train_iter"]
    finally:
        hosts.close()
