"""Messages of a worker process to its parent, and its exit."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from dingsdk.config import to_plain
from dingsdk.errors import UnknownPluginError
from dingsdk.pipeline import worker_process
from dingsdk.pipeline.process_group import LinkedProcess
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import run_worker
from dingsdk.pipeline.worker_process import WorkerSpec
from dingsdk.plugins import default_manager
from dingsdk.testing import open_files
from tests.own_plugins import plugin_of, using
from tests.programs import python

PATIENCE_S = 60.0


def spec(
    run_dir: Path, role: str = "collector", address: str = "http://127.0.0.1:9", **extra: Any
) -> WorkerSpec:
    cfg = compile_run("cartpole-dqn", "parallel", "flask_fs")
    return WorkerSpec(
        role=role,
        worker_id="w-0",
        cfg={**to_plain(cfg), **extra},
        address=address,  # nothing listens here
        run_dir=run_dir,
        snapshot=default_manager().snapshot(),
    )


def end_of(process: LinkedProcess) -> tuple[int | None, list[dict[str, Any]]]:
    process.join(PATIENCE_S)
    code, messages = process.exit_code, list(process.messages())
    process.close()
    return code, messages


def test_worker_starts_on_receiving_an_address_and_reports_why_it_cannot_be_built(
    tmp_path: Path,
) -> None:
    process = LinkedProcess(worker_process.worker_main, spec(tmp_path, role="colector", address=""))
    process.send("http://127.0.0.1:9")
    code, messages = end_of(process)
    assert (code, [message["event"] for message in messages]) == (1, ["failed"])
    assert "colector" in messages[0]["text"]
    assert "UnknownPluginError" in messages[0]["traceback"]
    assert messages[0]["is_user_mistake"]


def test_worker_stopped_before_it_has_an_address_exits_with_0(tmp_path: Path) -> None:
    resource_tracker.ensure_running()  # it keeps a file descriptor open
    before = open_files(collect=True)
    process = LinkedProcess(worker_process.worker_main, spec(tmp_path, role="colector", address=""))
    process.send_stop()
    assert end_of(process) == (0, [])
    assert open_files() == before


def test_configure_hooks_are_called_at_start_and_end_of_a_worker(tmp_path: Path) -> None:
    told: list[str] = []

    observer = plugin_of(
        configure=lambda config: told.append(config.policy.type),
        unconfigure=lambda: told.append("over"),
    )
    cfg = compile_run("cartpole-dqn", "parallel", "flask_fs")
    with using(observer), pytest.raises(UnknownPluginError, match="colector"):
        run_worker("colector", cfg, "http://127.0.0.1:9", "w-0", tmp_path, threading.Event())
    assert told == ["dqn", "over"]


def test_leave_runs_atexit_functions_and_flushes_output() -> None:
    program = (
        "import atexit; from dingsdk.pipeline.worker_process import leave;"
        "atexit.register(print, 'at the end'); print('before', end=', '); leave(3)"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (3, "before, at the end\n", "")


def test_worker_exits_within_a_time_limit_after_its_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(worker_process, "LEAVE_S", 0.05)
    addresses: list[str] = []
    ends: list[str] = []
    ours, theirs = multiprocessing.Pipe()
    ours.send("http://here")
    ours.close()
    began = time.monotonic()
    with theirs, pytest.raises(SystemExit) as ended:
        worker_process._obey(theirs, addresses.append, lambda: ends.append("end"))
    assert (addresses, ends, ended.value.code) == (["http://here"], ["end"], 0)
    assert time.monotonic() - began >= 0.05  # its job gets LEAVE_S to end
