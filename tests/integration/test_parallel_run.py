"""Parallel mode end to end: real CartPole, a real learner, over the in_memory transport."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium.envs.classic_control
import pytest

from dingsdk import hookimpl
from dingsdk.errors import DingError, TaskFailedError
from dingsdk.pipeline import parallel
from dingsdk.pipeline.context import RunResult
from dingsdk.pipeline.train import train
from dingsdk.worker.learner.checkpoint import load_checkpoint
from tests.own_plugins import using

from . import short_runs

QUICK = (*short_runs.QUICK, "system.transport.check_wire=true")


def run(tmp_path: Path, *sets: str, concurrency: str = "greenlets") -> RunResult:
    sets = (*QUICK, f"system.transport.concurrency={concurrency}", *sets)
    return train("cartpole-dqn", "parallel", "in_memory", sets, 3, tmp_path)


class Panic(BaseException):
    """What an env that is written in Rust raises when it panics: it is no ``Exception``."""


class PanickingEnv(gymnasium.envs.classic_control.CartPoleEnv):  # type: ignore[misc]
    def step(self, action: Any) -> Any:
        raise Panic("index out of bounds")


def test_run_whose_env_panics_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tasks wait for the collector, which has ended.
    monkeypatch.setattr(parallel, "CLOSE_S", (1.0, 8.0, 5.0))
    said = r"collector-\d ended with Panic: index out of bounds"
    with pytest.raises(DingError, match=said) as caught:
        run(tmp_path, f"env.env_id={__name__}:PanickingEnv", concurrency="threads")
    assert isinstance(caught.value.__cause__, Panic)


@pytest.mark.parametrize("concurrency", ["greenlets", "threads"])
def test_run_trains_evaluates_and_saves_both_checkpoints(tmp_path: Path, concurrency: str) -> None:
    result = run(tmp_path, concurrency=concurrency)

    assert result.reason == "limit"
    assert result.train_iter == 200
    assert result.env_steps > 100
    # A thread that is slow to evaluate may find a policy that has been trained.
    assert result.evaluations[0].train_iter == 0 or concurrency == "threads"
    assert all(each.episodes == 2 for each in result.evaluations)
    latest = load_checkpoint(result.checkpoints["latest"])
    best = load_checkpoint(result.checkpoints["best"])
    assert latest.iteration == 200
    assert best.state["model"].keys() == latest.state["model"].keys()
    assert result.evaluations[-1].train_iter == 200
    lag = result.policy_lag
    assert lag is not None
    assert 0 < lag["mean"] <= lag["largest"] <= 20  # 200 iterations, a version each 10
    # The initial policy may be evaluated twice before the learner begins.
    trained = [each for each in result.evaluations if each.train_iter]
    best_evaluation = max(trained, key=lambda each: each.mean)
    assert best.iteration == best_evaluation.train_iter
    assert latest.envstep > 100


class EvaluatorHeldBack:
    """Delays the first evaluation until the learner has ended its task."""

    def __init__(self) -> None:
        self.learner_ended = threading.Event()

    @hookimpl
    def dingsdk_before_task(self, task: Mapping[str, Any]) -> None:
        if (
            task["name"] == "collector_start_task"
            and task["task_info"]["collector_cfg"]["eval_flag"]
        ):
            assert self.learner_ended.wait(30.0)

    @hookimpl
    def dingsdk_after_task(self, task: Mapping[str, Any]) -> None:
        if task["name"] == "learner_close_task":
            self.learner_ended.set()


@pytest.mark.parametrize("stop_value", [1000.0, 1.0])
def test_evaluation_that_ends_after_training_counts(tmp_path: Path, stop_value: float) -> None:
    with using(EvaluatorHeldBack()):
        result = run(tmp_path, f"env.stop_value={stop_value}", concurrency="threads")

    assert [each.train_iter for each in result.evaluations] == [200]
    assert result.reason == ("limit" if stop_value == 1000.0 else "stop_value")
    assert load_checkpoint(result.checkpoints["best"]).iteration == 200


def test_last_evaluation_that_takes_too_long_is_stopped_and_not_counted(tmp_path: Path) -> None:
    result = run(
        tmp_path, "env.n_evaluator_episode=1000000", "system.coordinator.last_evaluation_s=0.1"
    )
    assert (result.reason, result.train_iter) == ("limit", 200)
    assert result.evaluations == ()
    assert "best" not in result.checkpoints


class BrokenEnv(gymnasium.envs.classic_control.CartPoleEnv):  # type: ignore[misc]
    def step(self, action: Any) -> Any:
        raise ValueError("the simulator fell over")


@pytest.mark.parametrize("concurrency", ["greenlets", "threads"])
def test_env_that_keeps_raising_ends_the_run_with_its_traceback(
    tmp_path: Path, concurrency: str
) -> None:
    with pytest.raises(TaskFailedError) as caught:
        run(tmp_path, f"env.env_id={__name__}:BrokenEnv", concurrency=concurrency)
    assert "the simulator fell over" in caught.value.facts["traceback"]
    assert any("the simulator fell over" in note for note in caught.value.__notes__)


def test_run_works_with_a_prioritized_buffer_with_limits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = "{push_sample_rate_limit: {max: 2.0, min: 0.001}}"
    result = run(
        tmp_path,
        "policy.other.replay_buffer.type=advanced",
        f"policy.other.replay_buffer.thruput_controller={bounds}",
        "policy.other.replay_buffer.max_use=40",
        "policy.other.replay_buffer.max_staleness=150",
        "policy.priority=true",
    )
    assert result.reason == "limit"
    assert result.train_iter == 200
    assert "nothing has happened" not in caplog.text  # rows end the wait of a limiter of rates


@pytest.mark.parametrize("limit", ["max_staleness=5", "max_use=1"])
def test_run_goes_on_when_all_rows_have_left_the_buffer(tmp_path: Path, limit: str) -> None:
    buffer = "policy.other.replay_buffer"
    sets = (f"{buffer}.type=advanced", f"{buffer}.{limit}", "system.max_env_steps=2000")
    result = run(tmp_path, *sets)
    assert result.reason == "limit"
    assert result.train_iter > 30
