"""The command ``dingsdk`` as a user types it; in a separate process where that matters."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dingsdk.cli import main
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .commands import PROGRAM, read_until

SMALL = [
    "--set", "system.max_env_steps=400",
    "--set", "env.n_evaluator_episode=3",
    "--set", "env.evaluator_env_num=3",
    "--set", "policy.learn.batch_size=32",
    "--set", "policy.collect.n_sample=32",
]  # fmt: skip
ENDLESS = [
    "--set", "system.max_env_steps=null",
    "--set", "env.stop_value=.inf",
    "--set", "policy.eval.evaluator.eval_freq=20",
]  # fmt: skip


class Shell:
    """Runs commands in this process, in a folder that the test chooses."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.out = self.err = ""

    def run(self, *arguments: str, cwd: Path) -> int:
        self._monkeypatch.chdir(cwd)
        self._capsys.readouterr()
        code = main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return code


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Train the small run once; return its working folder and its output."""
    cwd = tmp_path_factory.mktemp("user")
    done = subprocess.run(
        [*PROGRAM, "train", "cartpole-dqn", *SMALL],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cwd, done.stdout


@pytest.fixture
def run_copy(trained: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the trained run that a test may damage."""
    shutil.copytree(trained[0] / "runs" / "cartpole-dqn", tmp_path / "run")
    return tmp_path / "run"


def test_train_prints_progress_run_folder_and_next_commands(trained: tuple[Path, str]) -> None:
    cwd, out = trained
    lines = out.splitlines()

    begin = "training dqn on CartPole-v1, serial, seed 0"
    assert lines[0].startswith(f"{begin}, until a mean return of 475; run folder runs/")
    assert any("evaluation: mean return" in line for line in lines)
    assert "\x1b" not in out
    assert lines[-5].startswith("  run folder  runs/cartpole-dqn")
    assert lines[-3].startswith("  next        ")
    assert lines[-3].endswith("dingsdk eval runs/cartpole-dqn")
    assert lines[-2].startswith("              ")
    assert lines[-2].endswith("dingsdk train --resume runs/cartpole-dqn")
    assert "tensorboard --logdir runs/cartpole-dqn" in lines[-1]
    assert (cwd / "runs" / "cartpole-dqn" / "result.json").is_file()


def test_eval_prints_a_table_and_json(trained: tuple[Path, str], shell: Shell) -> None:
    cwd, _ = trained
    command = ["eval", "runs/cartpole-dqn", "--episodes", "4"]

    assert shell.run(*command, cwd=cwd) == 0
    assert re.match(r"CartPole-v1, \S+/ckpt/\S+, trained for [\d,]+ iterations\n", shell.out)
    assert "mean return" in shell.out
    assert shell.run(*command, "--checkpoint", "latest", "--json", cwd=cwd) == 0
    assert len(json.loads(shell.out)["returns"]) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-example"], "cartpole-dqn"),
        (["cartpole-dqn", "--set", "policy.type=dqm"], "did you mean 'dqn'"),
        (["cartpole-dqn", "--set", "env.env_id=CartPoll-v1"], "CartPole-v1"),
        (["cartpole-dqn", "--set", "no-equals-sign"], "path.to.key=value"),
        (["cartpole-dqn", "--mode", "parallel", "--transport", "pigeon"], "transports"),
        (["cartpole-dqn", "--transport", "in_memory"], "--mode parallel"),
    ],
)
def test_mistake_in_the_command_prints_one_line_and_creates_no_files(
    tmp_path: Path, shell: Shell, arguments: list[str], told: str
) -> None:
    assert shell.run("train", *arguments, cwd=tmp_path) == 2
    assert shell.err.startswith("Error: ")
    assert told in shell.err
    assert len(shell.err.splitlines()) == 1, shell.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("env_manager.vectorization_mode=sideways", "env_manager.vectorization_mode"),
        ("policy.learn.learner.hook.load_ckpt_before_run=/no/such", "no checkpoint at /no/such"),
    ],
)
def test_mistake_found_by_a_worker_is_printed_without_a_traceback(
    tmp_path: Path,
    shell: Shell,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    assignment: str,
    told: str,
) -> None:
    command = ["train", "cartpole-dqn", "--mode", mode, "--set", assignment]

    assert shell.run(*command, cwd=tmp_path) == 2
    assert told in shell.err
    assert "Traceback" not in shell.err
    assert shell.err.startswith("Error: ")
    # An error in the log would appear on the terminal a second time, with a traceback.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("command", ["eval", "status", "train --resume"])
def test_run_folder_with_a_name_that_is_too_long_gives_one_line(
    tmp_path: Path, shell: Shell, command: str
) -> None:
    assert shell.run(*command.split(), "x" * 300, cwd=tmp_path) == 2
    assert "is not a run folder: File name too long" in shell.err
    assert len(shell.err.splitlines()) == 1, shell.err


def test_eval_of_a_missing_checkpoint_gives_one_line(run_copy: Path, shell: Shell) -> None:
    (run_copy / "ckpt" / "ckpt_best.safetensors").unlink()

    assert shell.run("eval", str(run_copy), cwd=run_copy.parent) == 2
    assert "has no checkpoint 'best'. Known: iteration_" in shell.err
    assert len(shell.err.splitlines()) == 1, shell.err


@contextmanager
def training(
    cwd: Path, *more: str, until: str = r"evaluation: .* iteration [1-9]"
) -> Iterator[subprocess.Popen[str]]:
    """Start a run without a limit, wait until it prints ``until``, and kill it at the end."""
    process = subprocess.Popen(
        [*PROGRAM, "train", "cartpole-dqn", *SMALL,
         *ENDLESS, *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(cwd)},
    )  # fmt: skip
    with process:
        try:
            read_until(process, until)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 143, id="sigterm", marks=pytest.mark.slow),
    ],
)
def test_signal_stops_within_10_s_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with training(tmp_path) as process:
        sent_at = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - sent_at < 10

    assert process.returncode == code
    assert number.name in err
    assert "Traceback" not in err
    assert "Interrupted after" in out
    saved = re.search(r"checkpoint saved: (\S+?)\.$", out, re.MULTILINE)
    assert saved is not None
    assert load_checkpoint(tmp_path / saved[1]).iteration > 0
    result = json.loads((tmp_path / "runs" / "cartpole-dqn" / "result.json").read_text())
    assert (result["reason"], result["signal"]) == ("interrupted", int(number))


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--mode", "parallel"), marks=pytest.mark.slow)], ids=str
)
def test_closed_terminal_stops_a_run_with_a_checkpoint(tmp_path: Path, more: Any) -> None:
    code = (
        "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # under nohup it is ignored
    ) + "import sys; from dingsdk.cli import main; sys.exit(main())"
    terminal, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "cartpole-dqn", *SMALL, *ENDLESS, *more],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            os.close(theirs)
            shown = b""
            while not re.search(rb"evaluation: .* iteration [1-9]", shown):
                shown += os.read(terminal, 1 << 16)
            os.close(terminal)
            assert process.wait(30) == 129
        finally:
            process.kill()

    run_dir = tmp_path / "runs" / "cartpole-dqn"
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["reason"], result["signal"]) == ("interrupted", int(signal.SIGHUP))
    assert load_checkpoint(run_dir / "ckpt").iteration > 0
    assert list(run_dir.glob("log/*.crash")) == []


STUCK_ENV = """
import time

import gymnasium as gym
import numpy as np


class Stuck(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(600)


gym.register("Stuck-v0", entry_point=Stuck)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_signal_stops_within_10_s_when_an_env_hangs(tmp_path: Path, mode: str) -> None:
    (tmp_path / "stuck_env.py").write_text(STUCK_ENV)
    sets = ("--mode", mode, "--set", "env.env_id=stuck_env:Stuck-v0")
    with training(tmp_path, *sets, until="0 env steps") as process:
        sent_at = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - sent_at < 10

    assert process.returncode == 130
    assert "Interrupted after 0 env steps" in out
    assert "Traceback" not in err
    if mode == "serial":
        assert "checkpoint saved" in out
    else:  # all jobs share one thread
        assert "no other could save anything" in err
        assert "time.sleep(600)" in err
