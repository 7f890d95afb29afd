"""Files and folders of a run folder that are links, FIFOs or another user's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

import dingsdk
from dingsdk.cli import main
from dingsdk.errors import DingError
from dingsdk.pipeline.train import resume
from tests.integration.short_runs import QUICK

SETS = (
    *QUICK,
    "policy.learn.learner.train_iterations=8",
    "policy.learn.learner.hook.save_ckpt_after_iter=4",
    "policy.learn.learner.hook.table={type: csv_log, position: after_iter, ext_args: {freq: 1}}",
    "system.save_every=0.001",
)
MORE = ("policy.learn.learner.train_iterations=12",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return dingsdk.train("cartpole-dqn", sets=SETS, output=str(root)).run_dir


@pytest.fixture(scope="module")
def journaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in parallel mode with processes, which ended at a limit and can be resumed."""
    root = tmp_path_factory.mktemp("runs")
    sets = [*SETS, "system.transport.type=flask_fs"]
    return dingsdk.train("cartpole-dqn", "parallel", sets=sets, output=str(root)).run_dir


def tree(folder: Path) -> Mapping[str, tuple[int, bytes]]:
    """Return time and content of each file."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def move_out(path: Path, outside: Path) -> None:
    """Move a file or folder out of the run folder, and leave a link."""
    shutil.move(path, outside / path.name)
    path.symlink_to(outside / path.name)


def make_fifo(path: Path, outside: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [move_out, make_fifo])
@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "curve.png", "result.json", "status.json", "progress.jsonl", "seeds.json"),
        *("ckpt", "ckpt/latest.json", "log", "log/serial_tb_logger", "log/collector"),
        *("log/collector/collector_logger.txt", "log/learner", "resume", "resume/NEWEST"),
        *("resume/NEWEST/state.safetensors", "resume/NEWEST/buffer"),
        "log/learner/metrics.csv",
    ],
)
def test_resume_refuses_by_name_what_is_no_file_or_folder_of_the_run(
    trained: Path, tmp_path: Path, name: str, spoil: Callable[[Path, Path], None]
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run)
    outside.mkdir()
    newest = max((run / "resume").iterdir()).name
    path = run / name.replace("NEWEST", newest)
    assert path.exists(), sorted(each.relative_to(run) for each in run.rglob("*"))
    spoil(path, outside)
    before = tree(outside)
    began = time.monotonic()

    is_learners_log = "metrics" in name
    # A log that cannot be written ends with a warning, in the middle of the run.
    with nullcontext() if is_learners_log else pytest.raises(DingError, match=path.name):
        resume(run, sets=MORE)

    assert time.monotonic() - began < (10.0 if is_learners_log else 2.0)
    assert tree(outside) == before


@pytest.mark.parametrize(
    "name", ["journal", "journal/owner.json", "log/coordinator.crash", "transport", "log", "ckpt"]
)
def test_resume_with_processes_refuses_links_by_name(
    journaled: Path, tmp_path: Path, name: str
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(journaled, run)
    outside.mkdir()
    path = run / name
    if path.exists():
        move_out(path, outside)
    else:
        path.symlink_to(outside / "made")
    before = tree(outside)

    with pytest.raises(DingError, match=path.name):
        resume(run, sets=MORE)

    assert tree(outside) == before


@pytest.mark.parametrize("name", ["config.yaml", "ckpt", "ckpt/ckpt_best.safetensors"])
@pytest.mark.parametrize("spoil", [move_out, make_fifo])
def test_eval_reads_nothing_through_a_link_and_does_not_wait_for_a_fifo(
    trained: Path,
    tmp_path: Path,
    name: str,
    spoil: Callable[[Path, Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run)
    outside.mkdir()
    spoil(run / name, outside)
    began = time.monotonic()

    assert main(["eval", str(run)]) != 0

    assert time.monotonic() - began < 2.0
    assert Path(name).name in capsys.readouterr().err


def test_run_folder_that_is_a_link_and_foreign_links_in_it_are_left_alone(
    trained: Path, tmp_path: Path
) -> None:
    real, outside = tmp_path / "disk" / "run", tmp_path / "outside"
    shutil.copytree(trained, real)
    outside.mkdir()
    (real / "log" / "wandb").symlink_to(outside)  # as Weights & Biases makes them
    (real / "log" / "learner" / "debug.log").symlink_to(outside / "debug.log")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    run = tmp_path / "link" / "run"

    assert resume(run, sets=MORE).train_iter == 12
    assert dingsdk.evaluate(run, episodes=1).train_iter > 0

    assert (real / "log" / "wandb").is_symlink()
    assert list(outside.iterdir()) == []


def test_coordinator_refuses_a_folder_with_links_before_the_run_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (run / "ckpt").symlink_to(outside)

    command = ["coordinator", "--config", "cartpole-dqn", "--transport", "flask_fs", "--data"]
    assert main([*command, str(run)]) == 2

    assert "ckpt is refused: it is a symbolic link" in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == ["ckpt"]
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_read_but_written_only_by_root(
    trained: Path,
) -> None:
    # Below a folder that the other user can reach, unlike tmp_path.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        run = Path(place) / "run"
        shutil.copytree(trained, run)
        for path in (run, *run.rglob("*")):
            os.chown(path, 12345, 12345)
            path.chmod(0o777 if path.is_dir() else 0o666)

        def commands(run: Path) -> list[list[str]]:
            train = ["train", "--resume", str(run), "--set", MORE[0]]
            return [["status", str(run)], ["eval", str(run), "--episodes", "1"], train]

        # What root does first, with a copy and with no run at all, imports all modules: the other
        # user cannot read this Python.
        own = Path(place) / "own"
        shutil.copytree(trained, own)
        program = (
            "import os; from dingsdk.cli import main\n"
            f"assert not any(main(each) for each in {commands(own)!r})\n"
            f"assert main(['status', {str(own / 'none')!r}])\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"print([main(each) for each in {commands(run)!r}])"
        )
        # In that folder, as the checkout and its runs may be closed to the other user.
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=place, capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines()[-1] == "[0, 0, 2]", done.stdout + done.stderr
        assert "belongs to user 12345" in done.stderr

        assert resume(run, sets=MORE).train_iter == 12  # by root


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_resumes_a_run_with_processes_of_another_user(journaled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(journaled, run)
    assert (run / "transport" / "secret").is_file()
    for path in (run, *run.rglob("*")):
        os.chown(path, 12345, 12345)

    assert resume(run, sets=MORE).train_iter == 12


def test_result_that_became_a_link_during_the_run_is_replaced_and_not_followed(
    trained: Path, tmp_path: Path
) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained, run)
    outside.write_text("theirs")

    class Plant:
        def after_iter(self, iteration: int) -> None:
            for name in ("result.json", "curve.png"):
                (run / name).unlink(missing_ok=True)
                (run / name).symlink_to(outside)

    resume(run, sets=MORE, callbacks=[Plant()])

    assert outside.read_text() == "theirs"
    assert json.loads((run / "result.json").read_text())["train_iter"] == 12
    assert not (run / "curve.png").is_symlink()
