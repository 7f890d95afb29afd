"""The comparison that a replay makes, and the output of ``dingsdk replay``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.cli import main
from dingsdk.config import save_config
from dingsdk.errors import CheckpointMissingError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import SCHEDULE_NAME
from dingsdk.pipeline.replay import ReplayResult, _Watch, replay
from dingsdk.pipeline.run_folder import CHECKPOINT_FOLDER, CONFIG_NAME
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import observe
from dingsdk.worker.learner.checkpoint import save_checkpoint


def learner_of(state: Any) -> Any:
    return SimpleNamespace(policy=SimpleNamespace(state_dict=lambda: state))


def test_watch_copies_the_state_after_the_iteration_and_stops_the_run() -> None:
    weights, moments = torch.zeros(2, requires_grad=True), np.zeros(2)
    state = {"model": {"w": weights}, "optimizer": moments, "step": 3}
    stop = threading.Event()
    watch = _Watch(2, stop)
    assert (watch.reached, watch.state) == (0, None)
    watch.after_iter(learner_of(state), 0)
    assert (watch.reached, watch.state, stop.is_set()) == (1, None, False)
    watch.after_iter(learner_of(state), 1)
    assert (watch.reached, stop.is_set()) == (2, True)
    with torch.no_grad():
        weights += 1
    moments += 1
    watch.after_iter(learner_of(state), 2)
    assert watch.reached == 3
    assert watch.state is not None
    kept = watch.state["model"]["w"]
    assert (kept.tolist(), kept.requires_grad) == ([0.0, 0.0], False)
    assert (watch.state["optimizer"].tolist(), watch.state["step"]) == ([0.0, 0.0], 3)


@pytest.mark.parametrize(
    ("found", "code", "text"),
    [
        (ReplayResult(1200, 1200, ()), 0, "the policy of iteration 1,200 is the same"),
        (ReplayResult(1200, 1100, ()), 1, "came to iteration 1,100 of 1,200"),
        (ReplayResult(1200, 1100, (), signal.SIGTERM), 143, "came to iteration 1,100 of 1,200"),
        (ReplayResult(1200, 1200, ("model.w", "step")), 1, "1,200 differs in model.w, step"),
    ],
)
def test_replay_is_the_same_if_it_reached_the_iteration_without_differences(
    found: ReplayResult,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found.is_same is (code == 0)
    asked: list[Path] = []

    def train_again(run: Path) -> ReplayResult:
        asked.append(run)
        return found

    monkeypatch.setattr("dingsdk.pipeline.replay.replay", train_again)
    assert main(["replay", "runs/mine"]) == code
    assert text in capsys.readouterr().out
    assert asked == [Path("runs/mine")]


def test_run_without_a_schedule_or_without_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="there is no run folder"):
        replay(tmp_path / "nowhere")
    (tmp_path / CONFIG_NAME).touch()
    with pytest.raises(CheckpointMissingError, match="record_schedule=true writes one") as caught:
        replay(tmp_path)
    assert caught.value.path == str(tmp_path / SCHEDULE_NAME)
    (tmp_path / SCHEDULE_NAME).touch()
    save_checkpoint(tmp_path / CHECKPOINT_FOLDER, "iteration_0", {"w": np.zeros(1)}, iteration=0)
    with pytest.raises(CheckpointMissingError, match="was not trained") as caught:
        replay(tmp_path)
    assert caught.value.path == str(tmp_path)


@pytest.mark.parametrize(("trained", "reached"), [(2, 2), (0, 0)])
def test_replay_that_ends_early_reports_the_reached_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: int, reached: int
) -> None:
    def train_again(context: RunContext, mode: str, announce: Any) -> Any:
        assert (context.replays, mode) == (tmp_path / SCHEDULE_NAME, "parallel")
        for iteration in range(trained):
            observe().after_iter(learner=learner_of({}), iteration=iteration, log_vars={})
        return SimpleNamespace(signal=signal.SIGINT)

    save_config(compile_run("cartpole-dqn", "parallel"), tmp_path / CONFIG_NAME)
    (tmp_path / SCHEDULE_NAME).touch()
    save_checkpoint(tmp_path / CHECKPOINT_FOLDER, "iteration_5", {"w": np.zeros(1)}, iteration=5)
    monkeypatch.setattr("dingsdk.pipeline.replay.run_pipeline", train_again)
    assert replay(tmp_path) == ReplayResult(5, reached, (), signal.SIGINT)
