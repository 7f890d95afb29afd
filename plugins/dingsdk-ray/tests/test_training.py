"""A training from the command line with killed processes, and the files it leaves."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PATIENCE_S = 300.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]
GCS_PAUSE_S = 3.0  # less than the 10 s after which Ray ends its processes
ENV_STEPS = 15_000  # takes seconds, so that the training still runs during the kills


@contextlib.contextmanager
def training(folder: Path, *sets: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "dingsdk", "train", "cartpole-dqn", "--mode", "parallel"]
    command += ["--transport", "ray", "-q", "--output", str(folder)]
    # The return of CartPole is at most 500, so no run ends early.
    sets = ("env.stop_value=1000", "system.transport.object_store_bytes=200000000", *sets)
    sets = ("system.collector_num=1", *sets)  # each collector takes seconds to start
    command += [part for each in sets for part in ("--set", each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            if found := what():
                return found
        time.sleep(0.1)
    raise AssertionError("it did not come in time")


def processes_of(pid: int, text: str) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if text in " ".join(each.cmdline()):
                found.append(each)
    return found


def env_steps(folder: Path) -> int:
    status = json.loads((folder / "cartpole-dqn" / "status.json").read_text())
    return int(status.get("env_steps", 0))


def test_training_continues_after_a_worker_and_the_coordinator_are_killed(tmp_path: Path) -> None:
    with training(tmp_path, f"system.max_env_steps={ENV_STEPS}") as process:
        wait_for(lambda: env_steps(tmp_path) > 0)
        all_processes = psutil.Process(process.pid).children(recursive=True)
        processes_of(process.pid, "ray::RoleActor")[-1].kill()
        processes_of(process.pid, "spawn_main")[0].kill()
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, stderr.decode()
    assert "the coordinator died" in stderr.decode()
    result = json.loads((tmp_path / "cartpole-dqn" / "result.json").read_text())
    assert result["reason"] == "limit"
    assert result["env_steps"] >= ENV_STEPS
    _, left = psutil.wait_procs(all_processes, timeout=10.0)
    assert left == []


def test_training_continues_while_the_control_service_is_stopped_and_afterwards(
    tmp_path: Path,
) -> None:
    with training(tmp_path) as process:
        wait_for(lambda: env_steps(tmp_path) > 0)
        (service,) = processes_of(process.pid, "gcs_server")
        service.suspend()
        try:
            before = env_steps(tmp_path)
            wait_for(lambda: env_steps(tmp_path) > before + 1_000)
            for each in processes_of(process.pid, "ray::RoleActor"):
                each.kill()
            time.sleep(GCS_PAUSE_S)
        finally:
            service.resume()
        assert process.poll() is None
        wait_for(lambda: len(processes_of(process.pid, "ray::RoleActor")) >= 2)
        before = env_steps(tmp_path)
        wait_for(lambda: env_steps(tmp_path) > before + 1_000)
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    result = json.loads((tmp_path / "cartpole-dqn" / "result.json").read_text())
    assert result["reason"] == "interrupted"
    counts = result["samples"]
    assert counts["live"] + sum(counts["evicted"].values()) == counts["acknowledged"]


def test_workers_without_room_are_a_one_line_error_without_a_run_folder(
    ray_address: str, tmp_path: Path
) -> None:
    address = f"system.transport.address={ray_address}"
    with training(tmp_path, address, "system.transport.resources.learner.num_gpus=99") as process:
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    lines = stderr.decode().strip().splitlines()
    assert len(lines) == 1
    assert "no room for learner-0, which takes 99 GPU" in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_run_ends_soon_when_the_control_service_of_a_local_ray_is_lost_and_is_resumed(
    tmp_path: Path,
) -> None:
    with training(tmp_path) as process:
        wait_for(lambda: env_steps(tmp_path) > 0)
        ours = processes_of(process.pid, "ray::RoleActor") + processes_of(process.pid, "spawn_main")
        processes_of(process.pid, "gcs_server")[0].kill()
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "Traceback" not in stderr.decode()
    (line,) = [line for line in stderr.decode().splitlines() if "GCS" in line]
    assert "Failed to connect to GCS within 10 seconds" in line
    _, left = psutil.wait_procs(ours, timeout=30.0)
    assert left == []

    before = json.loads((tmp_path / "cartpole-dqn" / "status.json").read_text())
    limit = f"system.max_env_steps={before['env_steps'] + 1_000}"
    command = [sys.executable, "-m", "dingsdk", "train", "-q", "--set", limit, "--resume"]
    subprocess.run([*command, str(tmp_path / "cartpole-dqn")], timeout=PATIENCE_S, check=True)
    after = json.loads((tmp_path / "cartpole-dqn" / "result.json").read_text())
    counts = after["samples"]
    assert after["env_steps"] >= before["env_steps"] + 1_000
    assert counts["acknowledged"] >= before["samples"]["acknowledged"]
    assert counts["evicted"].keys() <= {"overwritten"}
    assert counts["live"] + sum(counts["evicted"].values()) == counts["acknowledged"]


def test_worker_that_the_memory_monitor_ends_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with training(tmp_path, "system.restarts=0") as process:
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    last = stderr.decode().strip().splitlines()[-1]
    assert re.search(r"worker (learner|collector)-\d died.*out of memory, so that Ray ended", last)
    assert "system.restarts is 0" in last
