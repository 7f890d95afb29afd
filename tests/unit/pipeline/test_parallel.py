"""Parts of the parallel pipeline that can be tested without workers."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import (
    ConfigError,
    DingError,
    RunDirLockedError,
)
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import (
    _finish_evaluations,
    _status,
    keeps_journal,
    open_journal,
    parallel_pipeline,
    worker_config,
)
from dingsdk.pipeline.saved_run import SavedRun
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import WorkerGroup
from dingsdk.worker import NaiveCommander
from dingsdk.worker.commander.base import BaseParallelCommander, PlayerProgress
from dingsdk.worker.coordinator import Coordinator, CoordinatorStatus
from dingsdk.worker.replay_server.client import FOLDER as REPLAY_FOLDER
from tests.own_plugins import using
from tests.unit.pipeline.coordinators import status


class Evaluating:
    """A fake coordinator whose last evaluations take ``needed_s`` seconds."""

    cfg = SimpleNamespace(last_evaluation_s=1.0)
    has_reached_goal = False

    def __init__(self, players: int, needed_s: float) -> None:
        self.end = self
        self.players = dict.fromkeys(map(str, range(players)))
        self.needed_s, self.waited_s = needed_s, 0.0

    def status(self) -> CoordinatorStatus:
        return dataclasses.replace(status(), players=self.players)  # type: ignore[arg-type]

    def finish_evaluations(self, timeout_s: float) -> bool:
        self.waited_s += timeout_s
        self.has_reached_goal = self.waited_s >= self.needed_s
        return self.has_reached_goal


@pytest.mark.parametrize(("players", "allowed_s"), [(0, 1.0), (1, 1.0), (3, 3.0)])
def test_time_limit_of_the_last_evaluations_grows_with_the_players(
    players: int, allowed_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    context: Any = SimpleNamespace(stop=threading.Event())
    coordinator: Any = Evaluating(players, allowed_s - 0.01)
    workers = WorkerGroup()
    assert _finish_evaluations(context, coordinator, workers, "limit") == "stop_value"
    assert caplog.text == ""
    coordinator = Evaluating(players, allowed_s + 0.01)
    assert _finish_evaluations(context, coordinator, workers, "limit") == "limit"
    assert coordinator.waited_s == pytest.approx(allowed_s)
    assert "cut off" in caplog.text


@pytest.mark.parametrize(("players", "buffers", "train_iter"), [(0, 1, 7), (1, 1, 9), (3, 3, 5)])
def test_status_is_that_of_all_players(
    tmp_path: Path, players: int, buffers: int, train_iter: int
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", None, (), 0)
    now = dataclasses.replace(
        status(),
        players={f"p{number}": PlayerProgress(9 - 2 * number, 2) for number in range(players)},
    )
    coordinator: Any = SimpleNamespace(status=lambda: now, state=SimpleNamespace(running={}))
    found = _status(RunContext(cfg=cfg, run_dir=tmp_path), coordinator)
    size = cfg.policy.other.replay_buffer.replay_buffer_size
    assert (found.buffer_capacity, found.workers) == (buffers * size, 3)
    assert (found.env_steps, found.train_iter, len(found.players)) == (10, train_iter, players)


@pytest.mark.parametrize(
    ("sets", "slack_rows"),
    [
        ((), 512 + 8 * 64 + 32),  # 16 batches of 128 for 512 rows are 32 rows a batch
        (("policy.collect.n_sample=3000",), 3000 + 8 * 375 + 188),
        (("policy.traj_len_inf=true",), 2 * 9 * 512 + 32),
        (("policy.collect.n_sample=64",), 1024),
        # Limited to 256 updates: the updates for 1,024 rows would take the learner a minute.
        (("policy.collect.n_sample=64", "policy.learn.update_per_collect=64"), 256),
        (("policy.collect.n_sample=16", "policy.learn.update_per_collect=256"), 16 + 8 * 2 + 1),
    ],
)
def test_limiter_lets_collectors_be_about_two_collects_ahead(
    tmp_path: Path, sets: tuple[str, ...], slack_rows: int
) -> None:
    cfg = compile_run("cartpole-dqn", "parallel", None, sets, 0)
    limiter = worker_config(cfg, tmp_path).policy.other.replay_buffer.limiter
    assert limiter.error_buffer / limiter.samples_per_insert == pytest.approx(slack_rows)
    assert limiter.samples_ahead == 0


class Silent(NaiveCommander):
    """A commander without a ``state_dict`` of its own."""

    state_dict = BaseParallelCommander.state_dict


def context_with(run_dir: Path, *sets: str, **given: Any) -> RunContext:
    cfg = compile_run("cartpole-dqn", "parallel", None, sets, 0)
    return RunContext(cfg=cfg, run_dir=run_dir, **given)


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_run_with_a_commander_without_state_dict_keeps_no_journal(
    tmp_path: Path, is_asked_for: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sets = ["policy.other.commander.type=silent"] + ["system.journal.enabled=true"] * is_asked_for
    with using(commanders={"silent": Silent}):
        context = context_with(tmp_path, *sets, on_address=lambda address, note: None)
        if is_asked_for:
            with pytest.raises(ConfigError, match="'silent' has no state_dict") as caught:
                keeps_journal(context)
            assert caught.value.path == "system.journal.enabled"
        else:
            assert not keeps_journal(context)
            assert "keeps no journal: the commander 'silent'" in caplog.text


def test_journal_can_be_opened_by_only_one_coordinator(tmp_path: Path) -> None:
    context = context_with(tmp_path, "system.journal.enabled=true")
    with ExitStack() as first, ExitStack() as second:
        journal = open_journal(context, first)
        assert journal is not None
        journal.open()
        with pytest.raises(RunDirLockedError, match=f": process {os.getpid()} on ") as caught:
            open_journal(context, second)
        assert caught.value.path == str(tmp_path / "journal")
    with ExitStack() as stack:
        assert open_journal(context, stack) is not None
    with ExitStack() as stack:
        assert open_journal(context_with(tmp_path), stack) is None


@pytest.mark.parametrize(
    ("reason", "is_kept"), [("interrupted", True), ("error", True), ("stop_value", False)]
)
def test_run_that_reached_its_goal_removes_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, is_kept: bool
) -> None:
    monkeypatch.setattr("dingsdk.pipeline.parallel._watch", lambda *given: reason)
    served = tmp_path / REPLAY_FOLDER
    served.mkdir()
    context = context_with(tmp_path, "system.journal.enabled=true")
    context.stop.set()
    assert parallel_pipeline(context).reason == reason
    assert (tmp_path / "journal").is_dir() == is_kept
    assert served.is_dir() == is_kept


@pytest.mark.parametrize("is_resumed", [False, True])
def test_journal_of_a_failed_start_is_kept_only_for_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_resumed: bool
) -> None:
    def start(coordinator: Coordinator) -> str:
        raise DingError("no port is free")

    monkeypatch.setattr(Coordinator, "start", start)
    context = context_with(tmp_path, "system.journal.enabled=true")
    context.resumed = SavedRun(tmp_path, {}) if is_resumed else None
    with pytest.raises(DingError, match="no port is free"):
        parallel_pipeline(context)
    assert (tmp_path / "journal").is_dir() == is_resumed
