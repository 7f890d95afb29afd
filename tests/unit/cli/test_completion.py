"""Shell completion, tested through the protocol of the completion scripts."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dingsdk.cli import main

SHELLS = ("bash", "zsh", "fish")


def variables(shell: str, words: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that the shell's script sets to complete the last of ``words``."""
    return {
        "_DINGSDK_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "\n".join(["dingsdk", *words]),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }


def proposals(shell: str, answer: str) -> list[str]:
    """Return ``kind,value`` of each proposal in the program's output."""
    lines = answer.strip("\n").splitlines()
    if shell == "zsh":  # three lines each: kind, value, help
        return [f"{kind},{value}" for kind, value in zip(lines[::3], lines[1::3], strict=True)]
    return [line.partition("\t")[0] for line in lines]


Ask = Callable[..., list[str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """``ask(shell, *words)`` returns the proposals for the last word. Runs in this process."""

    def ask(shell: str, *words: str) -> list[str]:
        with monkeypatch.context() as patch:
            for name, value in variables(shell, words).items():
                patch.setenv(name, value)
            assert main([]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return proposals(shell, out)

    yield ask
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("shell", SHELLS)
def test_files_and_shipped_examples_are_proposed_for_a_config(ask: Ask, shell: str) -> None:
    wanted = ["file,cartpole-d", "plain,cartpole-dqn"]

    assert ask(shell, "train", "cartpole-d") == wanted
    assert ask(shell, "config", "validate", "a", "b", "cartpole-d") == wanted
    assert ask(shell, "coordinator", "--config", "x") == ["file,x"]


def test_options_kinds_and_distributions_are_proposed(ask: Ask) -> None:
    assert ask("bash", "--") == ["plain,--debug", "plain,--version", "plain,--help"]
    assert ask("bash", "plugins", "--kind", "buf") == ["plain,buffers"]
    assert ask("bash", "new", "plugin", "li") == ["plain,limiter"]
    assert ask("bash", "check", "dingsdk-rl-in") == ["plain,dingsdk-rl-in-memory"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    program = tmp_path / "dingsdk"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dingsdk "$@"\n')
    program.chmod(0o700)
    script = """
        eval "$(_DINGSDK_COMPLETE=bash_source dingsdk)"
        compopt() { :; }  # there is no command line to complete
        COMP_WORDS=(dingsdk train cartpole-d) COMP_CWORD=2
        _dingsdk_completion dingsdk
        echo "${COMPREPLY[@]}"
    """

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stderr == ""
    assert "cartpole-dqn" in done.stdout
