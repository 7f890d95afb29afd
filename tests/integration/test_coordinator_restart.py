"""The coordinator is killed and restarted while its workers keep running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.small_disk import fill_up, small_disk
from tools.chaos.counting import acknowledged_rows

from .clusters import PATIENCE_S
from .commands import Site, iterations, read_until
from .test_parallel_resume import ITERATIONS, go_on, started, status, wait_until
from .test_processes import children_of

OPTIONS = [
    "--set", "env.stop_value=.inf", "--set", "env.evaluator_env_num=2",
    "--set", "env.n_evaluator_episode=2", "--set", "system.coordinator.lease_s=5",
    "--set", "system.validate_state=true",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 12.0])
def test_workers_continue_with_a_restarted_coordinator(tmp_path: Path, pause_s: float) -> None:
    with closing(Site(tmp_path, *OPTIONS)) as hosts:
        first = hosts.start("coordinator")
        address = read_until(first, r"^coordinator: (\S+)$")[1]
        port = address.rpartition(":")[2]
        learner = hosts.start_worker("learner", address, "--id", "l0")
        hosts.start_worker("collector", address, "--id", "c0")
        done = iterations(first, 100)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
        saved = [path.name for path in (hosts.data / "ckpt").glob("iteration_*")]
        time.sleep(pause_s)

        second = hosts.start("coordinator", "--port", port)
        again = iterations(second, done)
        # The learner keeps its weights in memory: no new checkpoint was written.
        assert [path.name for path in (hosts.data / "ckpt").glob("iteration_*")] == saved
        second.send_signal(signal.SIGINT)
        _, err = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 130, err
        assert "Traceback" not in err
        assert learner.wait(PATIENCE_S) == 0
        result = json.loads((hosts.data / "result.json").read_text())
        assert result["train_iter"] >= again > done
        assert load_checkpoint(hosts.data / "ckpt").iteration == result["train_iter"]


@pytest.mark.slow
def test_coordinator_is_restarted_until_the_disk_has_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    sets = (f"{ITERATIONS}=500", "system.collector_num=1", "system.transport.min_free_bytes=65536")
    said = ""

    def is_waiting_for_room() -> bool:
        nonlocal said
        fill_up(disk / "ballast")  # again, because deleted files free space
        said += capfd.readouterr().err
        return "the coordinator waits for up to" in said

    run = disk / "run"
    with small_disk(disk, "32m"):
        with started(disk, *sets) as process:
            wait_until(lambda: status(run)["train_iter"] > 100)
            (coordinator,) = coordinators_of(process)
            workers = workers_of(process) - {coordinator}
            assert len(workers) == 2
            os.kill(coordinator, signal.SIGKILL)
            wait_until(lambda: is_waiting_for_room() or process.poll() is not None)
            assert process.poll() is None, said
            for worker in workers:  # the run restarts them too
                os.kill(worker, signal.SIGKILL)
            (disk / "ballast").unlink()
            assert process.wait(PATIENCE_S) == 0
        result = json.loads((run / "result.json").read_text())
    assert (result["reason"], result["train_iter"]) == ("limit", 500)


@pytest.mark.slow
def test_run_continues_after_its_coordinator_is_killed_three_times(tmp_path: Path) -> None:
    kills = 3
    iterations = 300 + 200 * kills
    # A learner that loses its lease on a busy machine would begin again from a checkpoint.
    lease = "system.coordinator.lease_s=30"
    sets = (f"{ITERATIONS}={iterations}", "system.collector_num=1", lease)
    run = tmp_path / "run"
    killed: set[int] = set()
    with started(tmp_path, *sets) as process:
        for least in range(100, 100 + 200 * kills, 200):
            wait_until(lambda least=least: status(run)["train_iter"] > least)  # type: ignore[misc]
            wait_until(lambda: coordinators_of(process) - killed != set())
            (coordinator,) = coordinators_of(process) - killed
            killed.add(coordinator)
            os.kill(coordinator, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 0
    result = json.loads((run / "result.json").read_text())
    assert (result["reason"], result["train_iter"]) == ("limit", iterations)
    samples = result["samples"]
    # The test counts acknowledged rows itself, over all coordinators. A coordinator may die after
    # it journals rows and before it acknowledges them: up to 1024 rows per kill.
    rows = acknowledged_rows(tmp_path)
    assert rows <= samples["acknowledged"] <= rows + kills * 1024
    assert samples["acknowledged"] == samples["live"] + sum(samples["evicted"].values())
    assert "missing" not in samples["evicted"]
    # The learner never restarted its task: it loaded no checkpoint.
    learner = "".join(path.read_text() for path in (run / "log" / "learner").glob("*.txt"))
    assert "loaded" not in learner, learner
    steps = [each["env_steps"] for each in result["evaluations"]]
    assert steps == sorted(steps)


@pytest.mark.slow
def test_run_ends_after_too_many_coordinator_deaths_and_can_be_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with started(tmp_path, f"{ITERATIONS}=1000000", "system.restarts=0") as process:
        assert code_without_coordinator(process, run) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert "WorkerCrashedError: the coordinator died once" in last
    assert "killed by SIGKILL" in last
    before = status(run)["train_iter"]
    assert before > 100
    assert go_on(run, before + 200).train_iter >= before + 200


def code_without_coordinator(process: subprocess.Popen[bytes], run: Path) -> int:
    """Kill the coordinator of a run once it trains, and return the exit code of the run."""
    wait_until(lambda: status(run)["train_iter"] > 100)
    (coordinator,) = coordinators_of(process)
    os.kill(coordinator, signal.SIGKILL)
    return process.wait(PATIENCE_S)


def workers_of(process: subprocess.Popen[bytes]) -> set[int]:
    """Return the child processes of a run that were started by multiprocessing."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(process.pid)}
    forked = {pid for pid in commands if psutil.Process(pid).ppid() != process.pid}
    return forked | {pid for pid, command in commands.items() if b"spawn_main" in command}


def coordinators_of(process: subprocess.Popen[bytes]) -> set[int]:
    """Return the child process that the journal names as the coordinator, or an empty set."""
    try:
        owner = (Path(process.args[2]) / "run" / "journal" / "owner.json").read_text()  # type: ignore[index, arg-type]
    except FileNotFoundError:
        return set()
    named = {int(pid) for pid in re.findall(r"process (\d+) on ", owner)}
    return named & set(children_of(process.pid))
