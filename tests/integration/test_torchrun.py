"""Learners started by torchrun, or by hand with the environment variables of torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dingsdk.cli import main
from dingsdk.worker.learner.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0


class Cluster:
    """The commands of one run, each with its own log."""

    def __init__(self, folder: Path, iterations: int) -> None:
        self.run, self._folder = folder / "run", folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port, self.rank_port = free_port(), free_port()
        sets = [
            "system.learner_num=2",
            f"policy.learn.learner.train_iterations={iterations}",
            "env.stop_value=.inf",
            "env.collector_env_num=2",
            "system.transport.lost_after_s=5",
            "system.learner.send_policy_freq=5",
        ]
        self._options = ["--config", "cartpole-dqn", "--transport", "flask_fs"]
        self._options += ["--data", str(self.run)]
        for each in sets:
            self._options += ["--set", each]
        self.coordinator = self.start(
            "coordinator", ["--host", "127.0.0.1", "--port", f"{self.port}", "--quiet"]
        )
        self.start("collector", self.address)

    @property
    def address(self) -> list[str]:
        return ["--coordinator", f"http://127.0.0.1:{self.port}"]

    def start(
        self,
        role: str,
        more: list[str],
        before: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start ``dingsdk ROLE``, through the module and options in ``before`` if given."""
        name = f"{role}-{len(self._processes)}"
        command = [sys.executable, "-m", *before, "dingsdk", role, *self._options, *more]
        with (self._folder / name).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        self._processes.append(process)
        return process

    def rank(self, number: int, *sets: str) -> subprocess.Popen[bytes]:
        """Start a learner by hand."""
        more = [*self.address, *(word for each in sets for word in ("--set", each))]
        place = {"RANK": str(number), "WORLD_SIZE": "2"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.rank_port)}
        return self.start("learner", more, env=place)

    def train_iter(self) -> int:
        try:
            return int(json.loads((self.run / "status.json").read_text())["train_iter"])
        except (OSError, ValueError, KeyError):
            return 0

    def expect(self, predicate: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
        while not predicate():
            assert time.monotonic() < deadline, self.logs()
            pause.wait(0.05)

    def logs(self) -> str:
        paths = sorted(self._folder.glob("*-[0-9]"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def start_(iterations: int) -> Cluster:
        made.append(Cluster(tmp_path, iterations))
        return made[-1]

    yield start_
    for cluster in made:
        cluster.close()


def test_torchrun_starts_learners_that_train_together(start: Callable[[int], Cluster]) -> None:
    cluster = start(300)
    options = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1")
    options += ("--master-port", str(cluster.rank_port), "-m")
    learners = cluster.start("learner", cluster.address, before=("torch.distributed.run", *options))
    assert cluster.coordinator.wait(PATIENCE_S) == 0, cluster.logs()
    assert learners.wait(PATIENCE_S) == 0, cluster.logs()
    assert json.loads((cluster.run / "result.json").read_text())["train_iter"] == 300
    assert load_checkpoint(cluster.run / "ckpt").iteration == 300
    assert cluster.logs().count("the run is over") == 3


def test_rank_that_is_killed_and_started_again_joins_the_run(
    start: Callable[[int], Cluster],
) -> None:
    cluster = start(1_000_000)
    first, other = (cluster.rank(number) for number in (0, 1))
    cluster.expect(lambda: cluster.train_iter() > 20)
    other.kill()
    other.wait()
    trained = cluster.train_iter()
    again = cluster.rank(1)
    cluster.expect(lambda: cluster.train_iter() > trained + 40)
    assert "rank 1 of the learner is gone" in cluster.logs()
    cluster.coordinator.terminate()
    assert [each.wait(PATIENCE_S) for each in (first, again)] == [0, 0], cluster.logs()


def test_torchrun_does_not_start_whole_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert main(["train", "cartpole-dqn"]) == 2
    assert "torchrun starts one run several times" in capsys.readouterr().err
