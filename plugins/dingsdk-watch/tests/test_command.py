"""``dingsdk watch`` and ``dingsdk train --watch`` as processes."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.cli import main
from dingsdk.cli.train import LivePage
from dingsdk.plugins import PluginManager, Switches, use_manager

from .run_folders import write_run

PATIENCE_S = 60.0
Start = Callable[..., "subprocess.Popen[str]"]
SETS = [
    "--set=env.collector_env_num=2",
    "--set=env.evaluator_env_num=1",
    "--set=env.n_evaluator_episode=1",
    "--set=env.stop_value=1000",
    "--set=system.max_env_steps=300",
]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dingsdk", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


ADDRESS = r"live page  http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)$"


def address_of(process: subprocess.Popen[str], *patterns: str) -> tuple[int, str]:
    """Wait for the line with the address and a line for each pattern; return port and token."""
    assert process.stdout is not None
    found: dict[str, re.Match[str]] = {}
    lines = []
    for line in process.stdout:
        lines.append(line)
        found |= {each: match for each in (ADDRESS, *patterns) if (match := re.search(each, line))}
        if len(found) == 1 + len(patterns):
            return int(found[ADDRESS][1]), found[ADDRESS][2]
    raise AssertionError("".join(lines))


def read(port: int, token: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/status.json", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask(port: int, token: str) -> int:
    return read(port, token)[0]


def wait_until_refused(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            ask(port, "x")
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # the page ended during this request
    raise AssertionError("the page is still there")


@pytest.mark.parametrize(
    ("number", "flags"),
    [
        (signal.SIGINT, []),
        (signal.SIGINT, ["--until-closed"]),
        pytest.param(signal.SIGTERM, [], marks=pytest.mark.slow),
    ],
)
def test_watch_serves_until_it_is_told_to_end(
    start: Start, run_folder: Path, number: int, flags: list[str]
) -> None:
    process = start("watch", *flags, run_folder, stdin=subprocess.PIPE)
    port, token = address_of(process)
    assert (ask(port, token), ask(port, "wrong")) == (200, 401)

    process.send_signal(number)

    assert process.wait(PATIENCE_S) == 0


def test_runs_of_the_same_name_are_named_by_their_paths(start: Start, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a/run", "b/run", "other")]
    process = start("watch", *runs, runs[0])

    _, content = read(*address_of(process))

    names = [run["name"] for run in json.loads(content)["runs"]]
    assert names == [str(runs[0]), str(runs[1]), "other"]


def test_watch_that_another_program_started_ends_with_it(start: Start, run_folder: Path) -> None:
    process = start("watch", "--until-closed", run_folder, stdin=subprocess.PIPE)
    port, token = address_of(process)
    assert ask(port, token) == 200
    assert process.stdin is not None

    process.stdin.close()

    assert process.wait(PATIENCE_S) == 0


def write_token(path: Path, content: str, mode: int = 0o600) -> None:
    path.write_text(content)
    path.chmod(mode)


def test_token_file_gives_the_token_of_the_address(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_token(tmp_path / "token", "a-token-of-16-ch\n")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Path(os.devnull).open() as ended:
            monkeypatch.setattr(sys, "stdin", ended)
            arguments = ["--until-closed", str(run_folder), "--token-file", str(tmp_path / "token")]
            assert main(["watch", *arguments]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("?token=a-token-of-16-ch")


@pytest.mark.parametrize("content", [None, "short", "letters-enough and more", "é" * 20, ""])
def test_file_without_a_token_is_refused(
    run_folder: Path, tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    if content is not None:
        write_token(path, content)

    assert main(["watch", str(run_folder), "--token-file", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{tmp}/nowhere"], "no run folder"),
        (["{tmp}"], "not a run folder"),
        (["{run}", "--host", "0.0.0.0"], "--allow-host"),
        (["{run}", "--host", "203.0.113.1"], "--allow-host"),
        (["{run}", "--host", "203.0.113.1", "--allow-host", "x"], "cannot listen"),
        (["{run}", "--port", "70000"], "70000"),
        ([], "RUN"),
    ],
)
def test_mistakes_are_one_error_and_exit_2(
    run_folder: Path,
    tmp_path: Path,
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [each.format(tmp=tmp_path, run=run_folder) for each in arguments]

    assert main(["watch", *given]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.slow
def test_page_of_a_training_run_stays_after_it_until_ctrl_c(start: Start, tmp_path: Path) -> None:
    process = start("train", "cartpole-dqn", "--watch", "-q", "-o", tmp_path, *SETS)
    port, token = address_of(process, "stays until Ctrl-C")
    assert (tmp_path / "cartpole-dqn" / "result.json").is_file()
    assert ask(port, token) == 200
    assert process.poll() is None

    process.send_signal(signal.SIGINT)

    assert process.wait(PATIENCE_S) == 0
    wait_until_refused(port)


@pytest.mark.slow
def test_page_ends_with_a_training_run_that_is_killed(start: Start, tmp_path: Path) -> None:
    sets = [*SETS[:-1], "--set=system.max_env_steps=100000000"]
    process = start("train", "cartpole-dqn", "--watch", "-q", "-o", tmp_path, *sets)
    port, token = address_of(process)
    assert ask(port, token) == 200

    process.kill()

    process.wait(PATIENCE_S)
    wait_until_refused(port)


def test_missing_plugin_is_reported_with_a_hint_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with use_manager(PluginManager(Switches(), discover=list)):
        code = main(["train", "cartpole-dqn", "--watch", "-o", str(tmp_path / "runs")])

    assert code == 2
    assert "pip install" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_page_that_hangs_at_the_end_of_a_run_is_killed(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk.cli.train.PAGE_END_S", 0.1)
    with LivePage() as page:
        page.run_started(run_folder)
        process = page._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL
