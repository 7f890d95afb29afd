"""Worker processes: kills, stops, crashes, signals, and the files that a run leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dingsdk.errors import WorkerCrashedError
from dingsdk.pipeline import process_group
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.process_group import ProcessWorkers
from dingsdk.pipeline.resume import has_journal
from dingsdk.pipeline.status_file import read_status
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker import Coordinator
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .clusters import LEASE_S, PATIENCE_S, SETS, ProcessCluster, is_running
from .commands import PROGRAM, iterations


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    run_dir = tmp_path_factory.mktemp("cluster")
    with ProcessCluster(run_dir) as made:
        yield made
    assert multiprocessing.active_children() == []
    assert not (run_dir / "transport").exists()
    assert list((run_dir / "log").glob("*.crash")) == []


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> None:
    """Override the check after each test: the shared cluster is still running."""


@pytest.mark.slow
def test_stopped_collector_loses_its_task_and_joins_again(cluster: ProcessCluster) -> None:
    pid, incarnation = cluster.pid("collector-1"), cluster.incarnation("collector-1")
    os.kill(pid, signal.SIGSTOP)
    try:
        cluster.expect(lambda: cluster.incarnation("collector-1") == 0)  # given up
        others = cluster.env_steps()
        cluster.expect(lambda: cluster.env_steps() > others + 300)
        deadline = time.monotonic() + 2 * LEASE_S
        cluster.expect(lambda: time.monotonic() > deadline)
        assert cluster.incarnation("collector-1") == 0
    finally:
        os.kill(pid, signal.SIGCONT)

    cluster.expect(lambda: cluster.incarnation("collector-1") > incarnation)
    assert cluster.pid("collector-1") == pid
    cluster.coordinator.validate_state()


@pytest.mark.slow
def test_killed_learner_continues_from_its_checkpoint_and_no_policy_gets_older(
    cluster: ProcessCluster,
) -> None:
    cluster.expect(lambda: (cluster.run_dir / "ckpt" / "latest.json").is_file())
    cluster.expect(lambda: load_checkpoint(cluster.run_dir / "ckpt").iteration >= 50)
    before, incarnation = cluster.versions(), cluster.incarnation("learner-0")
    os.kill(cluster.pid("learner-0"), signal.SIGKILL)
    saved = load_checkpoint(cluster.run_dir / "ckpt").iteration

    seen = list(before)

    def is_training() -> bool:
        seen.extend(cluster.versions())
        return cluster.incarnation("learner-0") > incarnation and cluster.train_iter() > saved + 60

    cluster.expect(is_training)
    assert seen == sorted(seen)
    text = (cluster.run_dir / "log" / "learner" / "learner_logger.txt").read_text()
    assert f"of iteration {saved}" in text
    cluster.coordinator.validate_state()
    samples = cluster.coordinator.status().samples
    assert set(samples.evicted) <= {"overwritten"}
    assert samples.acknowledged == samples.live + sum(samples.evicted.values())


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["flask_fs", "shared_memory"])
def test_process_that_stops_before_it_joins_is_replaced(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport == "shared_memory":
        pytest.importorskip("dingsdk_shared_memory")
    others = {each.pid for each in multiprocessing.active_children()}
    with ProcessCluster(tmp_path, transport=transport) as cluster:
        started = [
            each.pid
            for each in multiprocessing.active_children()
            if each.name == "collector-1" and each.pid not in others
        ]
        (pid,) = filter(None, started)
        os.kill(pid, signal.SIGSTOP)
        cluster.expect_training()
        assert cluster.incarnation("collector-1") == 0
        with monkeypatch.context() as patch:
            patch.setattr(process_group, "START_S", 0.5)
            cluster.expect(lambda: not is_running(pid))
        cluster.expect(lambda: cluster.incarnation("collector-1") > 0)


@pytest.mark.slow
def test_stopped_process_does_not_delay_the_end(cluster: ProcessCluster) -> None:
    pid = cluster.pid("collector-0")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    cluster.coordinator.close(4.0)
    cluster.workers.close(4.0)

    assert time.monotonic() - began < 20
    assert multiprocessing.active_children() == []
    assert not is_running(pid)


@pytest.mark.slow
def test_collector_over_its_memory_limit_is_restarted_between_tasks(tmp_path: Path) -> None:
    sets = ["system.worker_memory_limit=1", "env.collector_episode_num=1", "system.restarts=0"]
    with ProcessCluster(tmp_path, sets) as cluster:
        collector = cluster.pid("collector-0")
        cluster.expect(lambda: cluster.pid("collector-0") != collector)
        cluster.expect_training()


@pytest.mark.slow
def test_learner_over_its_memory_limit_continues_from_its_checkpoint(tmp_path: Path) -> None:
    sets = ["system.worker_memory_limit=1", "system.restarts=0"]
    with ProcessCluster(tmp_path, sets) as cluster:
        cluster.expect_training()
        learner, trained = cluster.pid("learner-0"), cluster.train_iter()
        cluster.expect(lambda: cluster.pid("learner-0") != learner)
        assert load_checkpoint(tmp_path / "ckpt").iteration > trained
        cluster.expect(lambda: cluster.train_iter() > load_checkpoint(tmp_path / "ckpt").iteration)
        cluster.coordinator.validate_state()


RUN = [
    "train", "cartpole-dqn", "--mode", "parallel", "--transport", "flask_fs",
    "--set", "env.evaluator_env_num=2", "--set", "env.n_evaluator_episode=2",
    "--set", "policy.learn.batch_size=32", "--set", "policy.collect.n_sample=32",
    "--set", "policy.nstep=4",
    "--set", "system.collector_num=1",
]  # fmt: skip
ENDLESS = ["--set", "env.stop_value=.inf"]


def children_of(pid: int) -> list[int]:
    """Return the processes below a process: those of a run are children of its fork server."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [each.pid for each in found if is_running(each.pid)]


def start_run(cwd: Path, *extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *RUN, *extra],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def start_training(cwd: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start an endless run; return it with its child processes once it trains."""
    process = start_run(cwd, *ENDLESS)
    iterations(process, 0)
    return process, children_of(process.pid)


def expect_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if is_running(pid)]
        pause.wait(0.05)


@pytest.mark.slow
def test_run_leaves_its_folder_and_nothing_else(tmp_path: Path) -> None:
    process = start_run(tmp_path, "--set", "system.max_env_steps=600")
    pids: set[int] = set()
    while process.poll() is None:
        pids.update(children_of(process.pid))
        threading.Event().wait(0.05)
    out, err = process.communicate()

    assert process.returncode == 0, err
    assert "Limit reached" in out
    assert err == ""
    run_dir = tmp_path / "runs" / "cartpole-dqn"
    assert load_checkpoint(run_dir / "ckpt").iteration >= 0
    assert {path.name for path in run_dir.iterdir()} == {
        "ckpt", "config.yaml", "curve.png", "log", "result.json", "status.json",
        "journal", "progress.jsonl", "run.json", "transport",
    }  # fmt: skip
    assert len(pids) >= 2
    expect_gone(list(pids))


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_within_10_s_with_a_checkpoint(tmp_path: Path) -> None:
    process, children = start_training(tmp_path)
    sent_at = time.monotonic()
    # Like a terminal, send the signal to every process of the group.
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)

    assert time.monotonic() - sent_at < 10
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Interrupted after" in out
    expect_gone(children)
    assert load_checkpoint(tmp_path / "runs" / "cartpole-dqn" / "ckpt").iteration > 0
    assert has_journal(tmp_path / "runs" / "cartpole-dqn")
    assert f"train --resume {Path('runs', 'cartpole-dqn')}" in out


@pytest.mark.slow
def test_ctrl_c_while_workers_start_ends_at_once(tmp_path: Path) -> None:
    process = start_run(tmp_path, *ENDLESS)
    children: list[int] = []
    while len(children) < 4:  # resource tracker and fork server, then the coordinator and workers
        assert process.poll() is None, process.communicate()[1]
        children = children_of(process.pid)
        threading.Event().wait(0.02)
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert err.splitlines() == [
        "SIGINT: stopping and saving a checkpoint; press Ctrl-C again to exit at once"
    ]
    expect_gone(children)


@pytest.mark.slow
def test_second_ctrl_c_ends_the_run_and_its_workers_at_once(tmp_path: Path) -> None:
    process, children = start_training(tmp_path)
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode in (130, 143)
    assert "exiting at once" in err
    expect_gone(children)


@pytest.mark.slow
def test_run_goes_on_after_its_fork_server_was_killed(tmp_path: Path) -> None:
    process, children = start_training(tmp_path)
    run_dir = tmp_path / "runs" / "cartpole-dqn"
    (server,) = {psutil.Process(pid).ppid() for pid in children} - {process.pid}
    os.kill(server, signal.SIGKILL)
    expect_gone([server])
    before = read_status(run_dir)["train_iter"]
    deadline = time.monotonic() + PATIENCE_S
    while read_status(run_dir)["train_iter"] < before + 100:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    process, children = start_training(tmp_path)
    process.kill()
    process.wait(PATIENCE_S)

    expect_gone(children)
    process.communicate()


CRASHING_ENV = """
import os
import gymnasium

class CrashingEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **kwargs):
        os.abort()

    def step(self, action):
        raise NotImplementedError

gymnasium.register("Crashing-v0", CrashingEnv)
"""


@pytest.mark.slow
def test_worker_that_crashes_every_time_ends_the_run_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING_ENV)
    process = subprocess.run(
        [*PROGRAM, *RUN, "--set", "env.env_id=crashing:Crashing-v0", "--set", "system.restarts=1",
         "--set", "env_manager.type=in_process"],
        capture_output=True, text=True, cwd=tmp_path, timeout=90, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert process.returncode == 1, process.stderr
    assert "SIGABRT" in process.stderr
    assert "crashing.py" in process.stderr
    assert "died 2 times" in process.stderr
    result = json.loads((tmp_path / "runs" / "cartpole-dqn" / "result.json").read_text())
    assert result["reason"] == "error"


def poll_for(workers: ProcessWorkers, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        workers.poll()
        threading.Event().wait(0.02)


def test_worker_that_cannot_start_ends_the_run_at_once(
    tmp_path: Path,
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", "flask_fs", SETS, 3)
    cfg = worker_config(cfg, tmp_path)
    transport = make_transport(cfg, tmp_path)
    coordinator = Coordinator(cfg, transport)
    cfg.system.transport.import_names = ["no_such_module"]
    workers = ProcessWorkers(cfg, tmp_path, [("collector", "collector-0")], coordinator.master)
    workers.start(coordinator.start())
    try:
        with pytest.raises(WorkerCrashedError, match="collector-0 cannot start") as caught:
            poll_for(workers, PATIENCE_S)
    finally:
        coordinator.close()
        workers.close(5.0)
        transport.close()

    assert "no_such_module" in caught.value.facts["traceback"]
    assert caught.value.is_user_mistake
