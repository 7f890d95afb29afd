"""Resuming parallel runs whose processes were all killed, and runs that ended at a limit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dingsdk import resume, train
from dingsdk.cli import main
from dingsdk.config import load_config
from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    RunFolderError,
)
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import make_transport
from dingsdk.runtime.files import Folder
from dingsdk.worker import Coordinator
from dingsdk.worker.coordinator.journal import Journal
from dingsdk.worker.learner.checkpoint import load_checkpoint
from dingsdk.worker.run_id import run_id
from tests.own_plugins import using
from tests.small_disk import small_disk
from tools.chaos.counting import acknowledged_rows

from .own_parts import EPISODES, OWN_PARTS, RANDOM_REMOVER

ITERATIONS = "policy.learn.learner.train_iterations"
SETS = (
    "env.stop_value=10000",
    "policy.eval.evaluator.eval_freq=100",
    "system.validate_state=true",
    "system.coordinator.lease_s=5",
)
SCRIPT = """
import sys
from pathlib import Path
from dingsdk import train
from tools.chaos.counting import count_acknowledged

count_acknowledged(Path(sys.argv[1]))
if __name__ == "__main__":
    from tests.integration.own_parts import OWN_PARTS
    from tests.own_plugins import using

    with using(**OWN_PARTS):
        train("cartpole-dqn", "parallel", sys.argv[2], sys.argv[3:], 3, sys.argv[1])
"""
ROOT = Path(__file__).parents[2]


def wait_until(predicate: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not predicate():
        assert time.monotonic() < deadline
        pause.wait(0.05)


def status(run: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((run / "status.json").read_text())
    except FileNotFoundError:
        return {"train_iter": 0}
    return found


@contextmanager
def python(*arguments: str, cwd: Path = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """Start Python; at the end, kill it and all its descendants at once unless it has ended."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=environ)
    try:
        yield process
    finally:
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            found = [parent, *parent.children(recursive=True)]
            for each in found:
                each.send_signal(signal.SIGSTOP)  # so that none reacts to the death of another
            for each in found:
                each.kill()
            process.wait()
            psutil.wait_procs(found[1:], timeout=20)


def started(
    folder: Path, *sets: str, transport: str = "flask_fs"
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Start the run ``run`` in a folder; kill all its processes at the end."""
    script = folder / "run.py"
    script.write_text(SCRIPT)
    return python(str(script), str(folder), transport, "exp_name=run", *SETS, *sets)


@contextmanager
def recovered(run: Path, copy: Path) -> Iterator[Coordinator]:
    """Start a coordinator on a copy of a run's journal."""
    shutil.copytree(run, copy)
    cfg = compile_run(load_config(copy / "config.yaml"), "parallel")
    cfg = worker_config(cfg, copy)
    transport = make_transport(cfg, copy)
    with Folder(copy / "journal") as folder:
        coordinator = Coordinator(cfg, transport, journal=Journal(folder, run=run_id(copy)))
        coordinator.start()
        yield coordinator
        coordinator.close()
    transport.close()


def recovered_rows(run: Path, copy: Path) -> int:
    """Return how many acknowledged rows a coordinator restores from a copy of the journal."""
    with recovered(run, copy) as coordinator:
        coordinator.validate_state()
        found = coordinator.status().samples
        for payloads in coordinator.state.buffers.values():
            assert all(coordinator.data_store.has(name, 0.0) for name in payloads.live_ids())
    assert "missing" not in found.evicted
    return found.acknowledged


@contextmanager
def watched_fill(run: Path) -> Iterator[list[int]]:
    """Record how many samples the learner's table has, while a run goes on."""
    fills, is_over = [0], threading.Event()
    before = (run / "status.json").stat().st_mtime_ns

    def watch() -> None:
        while not is_over.wait(0.05):
            if (run / "status.json").stat().st_mtime_ns != before:
                fills.append(int(status(run)["buffer_fill"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield fills
    finally:
        is_over.set()
        watcher.join()


def go_on(run: Path, iterations: int, **options: Any) -> RunResult:
    return resume(run, sets=[f"{ITERATIONS}={iterations}"], **options)


@pytest.mark.slow
def test_run_resumes_after_all_its_processes_were_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(tmp_path, f"{ITERATIONS}=1000000", "system.collector_num=1"):
        wait_until(lambda: status(run)["train_iter"] > 150)
    before, rows = status(run), acknowledged_rows(tmp_path)
    assert not (run / "result.json").exists()
    # The journal may have one more payload, whose worker had no answer yet.
    assert rows <= recovered_rows(run, tmp_path / "copy") <= rows + 1024
    result = go_on(run, before["train_iter"] + 200)
    assert result.reason == "limit"
    assert result.train_iter == before["train_iter"] + 200
    assert result.env_steps > before["env_steps"]
    assert result.elapsed_s > before["elapsed_s"]
    assert result.samples.acknowledged > rows >= before["samples"]["acknowledged"]
    # Every sample that the first coordinator acknowledged is live or counted as evicted.
    result.samples.check()
    assert len(result.evaluations) >= 2
    steps = [each.env_steps for each in result.evaluations]
    assert steps == sorted(steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_swept", "own"),
    [(False, ()), (True, ()), (False, EPISODES), (False, RANDOM_REMOVER)],
    ids=["resumed first", "another run first", "episodes", "random remover"],
)
def test_shared_memory_run_resumes_after_all_its_processes_were_killed(
    tmp_path: Path, is_swept: bool, own: tuple[str, ...]
) -> None:
    run_memory = pytest.importorskip("dingsdk_shared_memory.run_memory")
    run = tmp_path / "run"
    memory = run_memory.folder_of(run)
    sets = (f"{ITERATIONS}=1000000", "system.collector_num=1", *own)
    with started(tmp_path, *sets, transport="shared_memory"):
        wait_until(lambda: status(run)["train_iter"] > 100)
    before, rows = status(run), acknowledged_rows(tmp_path)
    if is_swept:
        run_memory.remove_stale()  # as the next coordinator on this host does
        assert not memory.exists()
    with using(**OWN_PARTS), watched_fill(run) as fills:
        result = go_on(run, before["train_iter"] + 100)

    assert max(fills) >= before["buffer_fill"] > 0  # the new table has the rows of the old one
    assert result.train_iter >= before["train_iter"] + 100  # the newest checkpoint may be ahead
    assert result.samples.acknowledged > rows >= before["samples"]["acknowledged"]
    assert "missing" not in result.samples.evicted
    result.samples.check()
    assert not memory.exists()


def train_to_limit(output: Path, transport: str) -> RunResult:
    sets = [*SETS, f"{ITERATIONS}=60", "exp_name=run", "system.journal.enabled=true"]
    return train("cartpole-dqn", "parallel", transport, sets, 3, output)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended at a limit; tests copy it."""
    return train_to_limit(tmp_path_factory.mktemp("runs"), "in_memory").run_dir


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "transport", ["in_memory", pytest.param("flask_fs", marks=pytest.mark.slow)]
)
def test_run_that_reached_a_limit_resumes_with_a_higher_one(tmp_path: Path, transport: str) -> None:
    before = train_to_limit(tmp_path, transport)
    run = before.run_dir
    result = go_on(run, 90)
    assert (result.run_dir, result.mode, result.train_iter) == (run, "parallel", 90)
    assert result.env_steps >= before.env_steps > 0
    assert result.samples.acknowledged >= before.samples.acknowledged
    assert result.samples.trained > before.samples.trained
    assert result.evaluations[: len(before.evaluations)] == before.evaluations
    assert len(result.evaluations) > len(before.evaluations)
    assert load_config(run / "config.yaml")["policy"]["learn"]["learner"]["train_iterations"] == 90
    # The samples of in_memory are lost with the process and count as missing.
    missing = before.samples.live if transport == "in_memory" else 0
    assert result.samples.evicted.get("missing", 0) == missing


@pytest.mark.slow
def test_kept_payloads_of_shared_memory_that_were_damaged_are_not_trained_on(
    tmp_path: Path,
) -> None:
    pytest.importorskip("dingsdk_shared_memory")
    # Payloads that are not copied in memory, and therefore have no digest there.
    sets = [f"{ITERATIONS}=40", "exp_name=run", "system.journal.enabled=true"]
    large = "policy.collect.n_sample=2048"
    before = train("cartpole-dqn", "parallel", "shared_memory", [*SETS, *sets, large], 3, tmp_path)
    kept = sorted((before.run_dir / "transport").glob("*.ding"))
    assert max(path.stat().st_size for path in kept) > 16 << 10
    for number, path in enumerate(kept):
        content = bytearray(path.read_bytes())
        content[-1 - number * 997 % len(content)] ^= 1
        path.write_bytes(content)
    result = go_on(before.run_dir, 60)
    assert result.train_iter == 60
    assert result.samples.evicted["missing"] == before.samples.live
    result.samples.check()


@pytest.mark.parametrize("is_back", [True, False], ids=["new-weights", "at-the-limit"])
def test_limit_applies_to_the_iteration_the_learner_resumes_from(run: Path, is_back: bool) -> None:
    """The journal is at the limit; so is the learner, unless its checkpoints were removed."""
    if is_back:
        shutil.rmtree(run / "ckpt")
    before = status(run)["samples"]["trained"]
    result = go_on(run, 60)
    assert (result.reason, result.train_iter) == ("limit", 60)
    assert load_checkpoint(run / "ckpt").iteration == 60
    assert (result.samples.trained > before) == is_back


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def cut_after_a_line(content: bytes) -> bytes:
    """Cut off the end, so that what is left is the config of another run."""
    return content[: content.index(b"\n  replay:")]


@pytest.mark.parametrize(
    ("name", "damage", "text", "error_type"),
    [
        ("journal/*.facts", flip_a_bit, "is damaged at byte", CheckpointCorruptError),
        ("config.yaml", cut_after_a_line, "is cut off", ConfigError),
    ],
)
def test_damaged_file_is_refused_in_one_line_and_nothing_changes(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: Callable[[bytes], bytes],
    text: str,
    error_type: type[Exception],
) -> None:
    path = max(run.glob(name))
    path.write_bytes(damage(path.read_bytes()))
    before = contents(run)
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{path} {text}" in error
    assert error.count("\n") == 1
    assert contents(run) == before
    with pytest.raises(error_type):
        resume(run)


@pytest.mark.parametrize(
    ("name", "is_folder", "text"),
    [
        ("ckpt/latest.json", True, "not a regular file"),
        ("status.json", True, "not a regular file"),
        ("ckpt", False, "not a folder"),
        ("log", False, "not a folder"),
        ("journal/*.facts", True, "not a regular file"),
        ("config.yaml", True, "not a regular file"),
    ],
)
def test_run_folder_with_files_of_the_wrong_kind_is_refused_and_not_changed(
    run: Path, name: str, is_folder: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = max(run.glob(name))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.mkdir() if is_folder else path.touch()
    before = contents(run)
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert text in error
    assert error.count("\n") == 1
    assert contents(run) == before


@pytest.mark.parametrize("is_there", [True, False], ids=["numbered checkpoint", "no checkpoint"])
def test_learner_without_latest_json_resumes_from_the_newest_checkpoint(
    run: Path, is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    done = status(run)["train_iter"]
    for path in (run / "ckpt").iterdir() if not is_there else [run / "ckpt" / "latest.json"]:
        path.unlink()
    trained: list[int] = []

    def after_iter(iteration: int) -> None:
        trained.append(iteration)

    assert go_on(run, done + 10, callbacks=[after_iter]).train_iter == done + 10
    assert trained == list(range(done if is_there else 0, done + 10))
    assert ("begins with new weights" in caplog.text) != is_there


def test_second_concurrent_resume_is_refused(run: Path) -> None:
    refused: list[str] = []

    def again(_: Any) -> None:
        with pytest.raises(RunFolderError) as caught:
            resume(run)
        refused.append(str(caught.value))

    class Once:
        def after_evaluate(self, mean_return: float) -> None:
            if not refused:
                again(mean_return)

    result = go_on(run, 90, callbacks=[Once()])
    assert result.train_iter == 90
    assert "a run is under way" in refused[0]


def test_run_on_a_read_only_disk_is_refused_in_one_line(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        run = Path(shutil.copytree(ended, disk / "run"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"{run} cannot be written to" in error
    assert error.count("\n") == 1
