"""Recorded in_memory runs are replayed and train the same weights, bit for bit."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dingsdk_in_memory.greenlets import GreenletScheduler

from dingsdk import hookimpl, train
from dingsdk.cli import main
from dingsdk.errors import CheckpointCorruptError, CheckpointMissingError, ConfigError
from dingsdk.pipeline import parallel
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.replay import ReplayResult, _Watch, replay
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker.comm import BaseCommCollector

RECORD = "system.record_schedule=true"
ENDLESS = "env.stop_value=.inf"
CASES = {
    "iterations": ("cartpole-dqn", ["policy.learn.learner.train_iterations=150", ENDLESS]),
    "env steps": ("cartpole-dqn", ["system.max_env_steps=6000", ENDLESS]),
    "stop value": ("cartpole-dqn", ["env.stop_value=40"]),
    "prioritized": (
        "cartpole-dqn",
        [
            "policy.learn.learner.train_iterations=250",
            "policy.priority=true",
            "policy.other.replay_buffer.type=advanced",
            ENDLESS,
        ],
    ),
    "on-policy": ("cartpole-ppo", ["system.max_env_steps=9000", ENDLESS]),
    "sac": ("pendulum-sac", ["policy.learn.learner.train_iterations=300", "env.stop_value=1e9"]),
}


def recorded(folder: Path, config: str, sets: list[str]) -> RunResult:
    return train(config, "parallel", "in_memory", sets=[RECORD, *sets], output=folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


QUICK, *LONGER = CASES


@pytest.mark.parametrize(
    "case", [QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in LONGER)]
)
def test_replay_trains_the_same_weights(tmp_path: Path, case: str) -> None:
    run = recorded(tmp_path, *CASES[case])
    before = contents(run.run_dir)
    found = replay(run.run_dir)
    assert (found.iteration, found.different) == (run.train_iter, ())
    assert found.is_same
    assert found.iteration >= 40
    assert contents(run.run_dir) == before


def test_replay_that_is_stopped_takes_no_more_turns_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path, *CASES[QUICK])
    is_set = []
    replay_schedule, watch = GreenletScheduler.replay, parallel._watch

    def replays(self: GreenletScheduler, path: Path) -> threading.Event:
        is_set.append((replayed := replay_schedule(self, path)).is_set)
        return replayed

    def watches(*args: Any) -> Any:
        is_set.append(is_set.pop()())
        return watch(*args)

    monkeypatch.setattr(GreenletScheduler, "replay", replays)
    monkeypatch.setattr(parallel, "_watch", watches)
    replay(run.run_dir)
    assert is_set == [True]


def test_replay_stops_after_the_iteration_to_compare() -> None:
    stop = threading.Event()
    watch = _Watch(2, stop)
    learner = SimpleNamespace(policy=SimpleNamespace(state_dict=lambda: {"w": np.ones(2)}))
    watch.after_iter(learner, 0)
    assert (watch.reached, watch.state, stop.is_set()) == (1, None, False)
    watch.after_iter(learner, 1)
    assert watch.reached == 2
    assert watch.state is not None
    assert watch.state["w"].tolist() == [1.0, 1.0]
    assert stop.is_set()


@pytest.mark.parametrize(
    ("found", "code", "text"),
    [
        (ReplayResult(150, 150, ()), 0, "the policy of iteration 150 is the same, bit for bit"),
        (ReplayResult(150, 150, ("a.w", "b")), 1, "iteration 150 differs in a.w, b"),
        (ReplayResult(1_500, 90, ()), 1, "the replay came to iteration 90 of 1,500"),
    ],
)
def test_command_says_how_a_replay_ended(
    found: ReplayResult,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dingsdk.pipeline.replay.replay", lambda run: found)
    assert main(["replay", "run"]) == code
    assert text in capsys.readouterr().out


class LateCollectors:
    """Registers a collector type; building a collector takes the next of ``delays_s``."""

    def __init__(self, delays_s: list[float]) -> None:
        delays = iter(delays_s)

        class LateCollector(BaseCommCollector):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                time.sleep(next(delays))
                super().__init__(*args, **kwargs)

        self._collector = LateCollector

    @hookimpl
    def dingsdk_register_comm_collectors(self, registry: Any) -> None:
        registry.register("late", self._collector)


@pytest.mark.slow
def test_replay_does_not_depend_on_how_long_set_up_takes(tmp_path: Path) -> None:
    # Three collectors of the run, then those of the replay.
    delays_s = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    sets = [
        "system.collector_num=3",
        "system.collector.type=late",
        "policy.learn.learner.train_iterations=60",
        ENDLESS,
    ]
    with use_manager(PluginManager()) as manager:
        manager.register_plugin(LateCollectors(delays_s))
        run = recorded(tmp_path, "cartpole-dqn", sets)
        found = replay(run.run_dir)
    assert (found.iteration, found.different) == (60, ())
    assert found.is_same


@pytest.mark.slow
def test_schedule_takes_less_than_a_hundredth_of_the_samples(tmp_path: Path) -> None:
    run = recorded(tmp_path, "cartpole-dqn", ["system.max_env_steps=20000", ENDLESS])
    # obs and next_obs: 8 float32; action: int64; reward, discount: float32; done: bool.
    row_bytes = 8 * 4 + 8 + 2 * 4 + 1
    size = (run.run_dir / "schedule.bin").stat().st_size
    assert size < 0.01 * row_bytes * run.env_steps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    return recorded(folder, "cartpole-dqn", CASES["iterations"][1]).run_dir


@pytest.mark.slow
def test_command_says_whether_the_weights_are_the_same(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run)]) == 0
    assert "the policy of iteration 150 is the same, bit for bit" in capsys.readouterr().out
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("learning_rate: 0.002", "learning_rate: 0.003"))
    try:
        assert main(["replay", str(run)]) == 1
    finally:
        config.write_text(text)
    assert "the policy of iteration 150 differs in " in capsys.readouterr().out


@pytest.mark.slow
def test_damaged_schedules_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="is not a run folder"):
        replay(tmp_path)
    path = run / "schedule.bin"
    content = path.read_bytes()
    try:
        for damaged in (b"", content[:-7], b"x" + content, content[:40] + b"\0" + content[41:]):
            path.write_bytes(damaged)
            with pytest.raises(CheckpointCorruptError, match="cannot be used"):
                replay(run)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("mode", "sets", "text"),
    [
        ("serial", [], "a serial run is the same for the same seed"),
        ("parallel", ["system.transport.type=flask_fs"], "'flask_fs' jobs run side by side"),
        ("parallel", ["system.transport.concurrency=threads"], "jobs run side by side"),
        ("parallel", ["env_manager.type=async_subprocess"], "whatever env comes back first"),
    ],
)
def test_recording_is_refused_for_runs_without_a_schedule(
    tmp_path: Path, mode: Any, sets: list[str], text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        train("cartpole-dqn", mode, sets=[RECORD, *sets], output=tmp_path)
    assert caught.value.path == "system.record_schedule"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_replay_that_ends_early_reports_how_far_it_came(run: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("train_iterations: 150", "train_iterations: 20"))
    try:
        found = replay(run)
    finally:
        config.write_text(text)
    assert (found.iteration, found.reached, found.is_same) == (150, 20, False)
    assert json.loads((run / "result.json").read_text())["train_iter"] == 150
