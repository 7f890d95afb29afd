"""A failed start leaves nothing that blocks the next one; run files are private."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from dingsdk.cli import main
from dingsdk.errors import EnvError
from dingsdk.pipeline.train import compile_run, run_coordinator, train

from .short_runs import QUICK

FLASK_FS = ("--config", "cartpole-dqn", "--transport", "flask_fs")


def test_coordinator_on_a_port_in_use_leaves_no_data_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port = theirs.getsockname()[1]
        code = main(["coordinator", *FLASK_FS, "--data", str(data), "--port", str(port)])
        assert code != 0
        assert "in use" in capsys.readouterr().err
        assert not data.exists()

    cfg = compile_run("cartpole-dqn", "parallel", "flask_fs")
    with pytest.raises(KeyboardInterrupt):
        run_coordinator(cfg, data, _interrupt)  # the port is free now


def _interrupt(address: str, note: str) -> None:
    raise KeyboardInterrupt


UNGUARDED = """
from dingsdk import train
sets = ["policy.learn.learner.train_iterations=1", {sets!r}]
train("cartpole-dqn", {mode!r}, {transport!r}, sets)
"""
WORKERS = ("parallel", "flask_fs", "seed=0")
ENVS = ("serial", None, "env_manager.type=subprocess")
RANKS = ("serial", None, "system.learner_num=2")
GUARD, FILE = 'if __name__ == "__main__":', "save it as a file"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "script", "told"),
    [
        (WORKERS, "script.py", GUARD),
        (ENVS, "script.py", GUARD),
        (RANKS, "script.py", GUARD),
        (WORKERS, "-", FILE),
    ],
    ids=["workers", "envs", "ranks", "standard-input"],
)
def test_script_that_child_processes_cannot_import_gets_a_clear_error(
    tmp_path: Path, run: tuple[str, str | None, str], script: str, told: str
) -> None:
    mode, transport, sets = run
    source = UNGUARDED.format(mode=mode, transport=transport, sets=sets)
    (tmp_path / "script.py").write_text(source)
    process = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path, input=source, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert process.returncode == 1
    (said,) = (line for line in process.stderr.splitlines() if line.startswith("dingsdk.errors."))
    assert told in said
    # This error ends the script; it is the last one in the output.
    assert re.findall(r"^[\w.]+Error: .*$", process.stderr, re.MULTILINE)[-1] == said
    assert list(tmp_path.rglob("config.yaml")) == []


class Starting(CartPoleEnv):
    """Its ``reset`` raises while ``is_broken`` is set."""

    is_broken = False

    def reset(self, **kwargs: Any) -> Any:
        if Starting.is_broken:
            raise RuntimeError("the simulator is not there")
        return super().reset(**kwargs)


def test_serial_run_whose_envs_do_not_start_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_started() -> None:
        monkeypatch.setattr(Starting, "is_broken", True)

    with pytest.raises(EnvError, match="the simulator is not there"):
        train("cartpole-dqn", sets=QUICK, output=tmp_path, env=Starting, callbacks=[run_started])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def umask_0() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_files_of_a_run_are_private_whatever_the_umask(
    tmp_path: Path, umask_0: None, mode: str
) -> None:
    sets = (*QUICK, "system.transport.workers=processes", "system.transport.keep_data=true")
    transport = "flask_fs" if mode == "parallel" else None
    sets = sets if mode == "parallel" else QUICK
    result = train("cartpole-dqn", mode, transport, sets, 0, tmp_path / "runs")  # type: ignore[arg-type]

    found = {
        result.run_dir: result.run_dir.stat(),
        **{p: p.stat() for p in result.run_dir.rglob("*")},
    }
    open_to_others = {
        str(path.relative_to(tmp_path)): oct(each.st_mode)
        for path, each in found.items()
        if stat.S_IMODE(each.st_mode) & 0o077
    }
    assert open_to_others == {}
    assert len(found) > 10
