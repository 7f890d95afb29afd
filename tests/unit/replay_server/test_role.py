"""The worker that serves the replay buffer of a run."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dingsdk import ReplayClient
from dingsdk.data import derive_seed
from dingsdk.errors import CheckpointError
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import Master
from dingsdk.worker.replay_server import ReplayServer
from dingsdk.worker.replay_server.role import ReplayServerRole, ReplayWorker
from dingsdk.worker.run_id import run_id

from .serving import rows


def worker_of(tmp_path: Path, transport: dict[str, Any], enabled: Any, seed: Any) -> ReplayWorker:
    run_cfg = {
        "seed": 7,
        "policy": {"other": {"replay_buffer": {"type": "naive", "seed": seed}}},
        "system": {"journal": {"enabled": enabled}},
    }
    with closing(default_manager().create("transports", transport, tmp_path)) as made:
        worker = ReplayServerRole({}, run_cfg).create_worker(made, "replay-server-0")
    assert isinstance(worker, ReplayWorker)
    return worker


@pytest.mark.parametrize(
    ("transport", "enabled", "is_kept"),
    [
        ({"type": "in_memory"}, "auto", False),
        ({"type": "in_memory"}, True, True),
        ({"type": "flask_fs"}, "auto", True),
        ({"type": "flask_fs", "workers": "threads"}, "auto", False),
        ({"type": "flask_fs"}, False, False),
    ],
)
def test_only_runs_with_a_journal_keep_a_checkpoint(
    tmp_path: Path, transport: dict[str, Any], enabled: Any, is_kept: bool
) -> None:
    assert worker_of(tmp_path, transport, enabled, 0)._is_kept == is_kept


@pytest.mark.parametrize(("seed", "expected"), [(None, derive_seed(7, "buffer")), (0, 0), (5, 5)])
def test_buffer_without_a_seed_gets_one_from_the_run(
    tmp_path: Path, seed: int | None, expected: int
) -> None:
    worker = worker_of(tmp_path, {"type": "in_memory"}, "auto", seed)
    assert worker._buffer_cfg["seed"] == expected


def test_worker_always_has_a_job_and_reports_its_resources(tmp_path: Path) -> None:
    worker = worker_of(tmp_path, {"type": "in_memory"}, "auto", 0)
    assert (worker.has_job, worker.info.role) == (True, "replay-server")
    assert worker.info.resource == {"cpu": os.cpu_count()}
    assert worker._is_alive(0.0)
    assert worker.close()  # before it has started


@pytest.mark.parametrize("enabled", [False, True])
def test_worker_serves_after_start_and_keeps_a_checkpoint_if_enabled(
    tmp_path: Path, enabled: bool
) -> None:
    transport = default_manager().create("transports", {"type": "in_memory"}, tmp_path)
    master = Master(transport.master_end(), transport.scheduler)
    buffer_cfg = {"type": "naive", "replay_buffer_size": 100}
    worker = ReplayWorker(transport, "replay-server-0", buffer_cfg, is_kept=enabled)
    worker.start(master.start())
    with ReplayClient(path=tmp_path / "replay") as client:
        client.insert(rows(0))
        assert client.stats()["count"] == 64
    assert worker.close()
    assert worker.close()
    assert (tmp_path / "replay" / "checkpoint.json").exists() == enabled
    master.close()
    transport.close()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_worker_refuses_the_replay_buffer_of_another_run_and_changes_nothing(
    tmp_path: Path, has_checkpoint: bool
) -> None:
    transport = default_manager().create("transports", {"type": "in_memory"}, tmp_path)
    cfg = {"type": "naive", "replay_buffer_size": 100}
    folder = tmp_path / "replay"
    ReplayServer({}, cfg, folder, run_id(tmp_path)).close(has_checkpoint=has_checkpoint)
    (tmp_path / "run.json").unlink()
    other = run_id(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    worker = ReplayWorker(transport, "replay-server-0", cfg, is_kept=True)
    with pytest.raises(CheckpointError, match=f"that of this run is '{other}'"):
        worker.start("nobody")

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    transport.close()
