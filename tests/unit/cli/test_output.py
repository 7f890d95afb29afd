"""Output that cannot be written: a closed pipe, a full disk, a closed stdout or terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dingsdk.pipeline.console import RunConsole

CODE = "import sys; from dingsdk.cli import main; sys.exit(main())"
PROGRAM = [sys.executable, "-c", CODE]
NOWHERE = {"full": 'exec "$@" >/dev/full', "closed": 'exec "$@" >&-', "unread": '"$@" | true'}


def run(arguments: list[str], nowhere: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a shell, with a stdout that leads nowhere."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", NOWHERE[nowhere], "bash", *PROGRAM, *arguments],
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
        timeout=120,
        check=False,
    )


def test_console_of_a_run_is_quiet_after_a_character_that_it_cannot_write() -> None:
    with Path(os.devnull).open("w", encoding="ascii") as file:
        console = RunConsole(file=file)
        console.print("\N{SNOWMAN}")
        assert console.quiet


@pytest.mark.parametrize("buffering", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["plugins"], marks=pytest.mark.slow), ["config", "show", "cartpole-dqn"]],
    ids="-".join,
)
@pytest.mark.parametrize("nowhere", ["full", "closed"])
def test_command_that_cannot_write_its_output_says_so_in_one_line(
    arguments: list[str], nowhere: str, buffering: str
) -> None:
    done = run(arguments, nowhere, PYTHONUNBUFFERED=buffering)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot write the output: ")
    assert done.stderr.count("\n") == 1


def test_command_whose_reader_has_ended_says_nothing() -> None:
    done = run(["config", "show", "cartpole-dqn"], "unread")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "nowhere",
    ["full", *(pytest.param(each, marks=pytest.mark.slow) for each in ("closed", "unread"))],
)
def test_training_that_cannot_write_its_output_continues_to_its_end(
    tmp_path: Path, nowhere: str
) -> None:
    sets = (
        "policy.learn.learner.train_iterations=3",
        "env.n_evaluator_episode=1",
        "env.evaluator_env_num=1",
    )
    options = [option for each in sets for option in ("--set", each)]
    done = run(["train", "cartpole-dqn", "-o", str(tmp_path), *options], nowhere)
    assert done.returncode == 0, done.stderr
    assert "the run continues" in done.stderr
    assert done.stderr.count("\n") == 1
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["reason"] == "limit"
