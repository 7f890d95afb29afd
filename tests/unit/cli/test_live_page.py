"""The live page of ``dingsdk train --watch``; a shell script replaces the page's process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from dingsdk.cli import main
from dingsdk.cli import train as train_module
from dingsdk.cli.train import LivePage
from dingsdk.errors import UnknownPluginError
from dingsdk.plugins import PluginManager, use_manager

Pages = Callable[[str], None]


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """``show(script)`` makes the page's process run this shell script."""

    def show(script: str) -> None:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    manager = PluginManager(discover=lambda: [])
    manager.registry("commands").register("watch", click.Command("watch"))
    with use_manager(manager):
        yield show


def process_of(page: LivePage) -> subprocess.Popen[str]:
    assert page._process is not None
    return page._process


def test_page_needs_its_plugin() -> None:
    with (
        use_manager(PluginManager(discover=lambda: [])),
        pytest.raises(UnknownPluginError, match="watch"),
    ):
        LivePage()


def test_page_of_a_run_is_shown_until_the_run_closes_it(
    show: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    show('echo "$@"; cat > /dev/null; echo gone')
    with LivePage() as page:
        page.run_started(Path("/runs/mine"))
        process = process_of(page)
        assert os.getsid(process.pid) == process.pid  # Ctrl-C reaches only the run
        assert page._printer.daemon
    assert process.poll() == 0
    assert capsys.readouterr().out.splitlines() == [
        "-P -m dingsdk watch --until-closed /runs/mine",
        "gone",
    ]


def test_all_output_of_a_page_is_shown_at_its_end(
    show: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    show("cat > /dev/null; seq 20000")
    with LivePage() as page:
        page.run_started(Path("/runs/mine"))
    assert capsys.readouterr().out.splitlines()[-1] == "20000"


def test_page_that_does_not_end_in_time_is_killed(
    show: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "PAGE_END_S", 0.05)
    show("exec sleep 60")
    with LivePage() as page:
        page.run_started(Path("/runs/mine"))
    assert process_of(page).returncode == -9


def fail(page: LivePage, error: BaseException) -> None:
    page.run_started(Path("/runs/mine"))
    raise error


def test_page_stays_open_after_a_failed_run_until_ctrl_c(
    show: Pages, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait
    waited: list[int | None] = []

    def interrupted(process: subprocess.Popen[str], timeout: float | None = None) -> int:
        if timeout is None:
            waited.append(process.poll())
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    show("cat > /dev/null")
    with pytest.raises(ValueError, match="no"), LivePage() as page:
        fail(page, ValueError("no"))
    assert waited == [None]
    assert process_of(page).returncode == 0
    told = capsys.readouterr()
    assert told.err == "\nThe run failed: ValueError: no\n"
    assert told.out == "  live page   stays until Ctrl-C\n"


def test_page_does_not_stay_open_after_ctrl_c(
    show: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    show("cat > /dev/null")
    with pytest.raises(KeyboardInterrupt), LivePage() as page:
        fail(page, KeyboardInterrupt())
    page.wait()
    assert capsys.readouterr() == ("", "")


def test_page_that_was_never_shown_is_not_waited_for(
    show: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="no"), LivePage() as page:
        raise ValueError("no")
    page.wait()
    assert capsys.readouterr() == ("", "")


def test_watched_run_waits_for_its_page_at_the_end(
    show: Pages,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = []
    monkeypatch.setattr(LivePage, "wait", lambda page: waited.append(process_of(page).poll()))
    show('echo "page of $6"; cat > /dev/null')
    sets = (
        "env.collector_env_num=1",
        "env.evaluator_env_num=1",
        "env.n_evaluator_episode=1",
        "env.stop_value=1000",
        "policy.learn.learner.train_iterations=1",
    )
    options = [part for each in sets for part in ("--set", each)]
    output = ["--output", str(tmp_path), "--quiet", "--watch"]
    assert main(["train", "cartpole-dqn", *options, *output]) == 0
    assert waited == [None]
    (run,) = [each for each in tmp_path.iterdir() if each.is_dir()]
    assert f"page of {run}" in capsys.readouterr().out
