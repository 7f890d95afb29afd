"""The live table and the plain lines that show the progress of a run."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from dingsdk.pipeline.console import LINE_S, ConsoleProgress, _parts
from dingsdk.pipeline.context import Evaluation, RunningTask, RunStatus, WorkerStatus
from dingsdk.pipeline.status_file import RateMeter

STATUS = RunStatus(
    env_steps=12_000,
    train_iter=3_000,
    last_return=20.0,
    best_return=30.0,
    buffer_fill=10,
    buffer_capacity=64,
    workers=3,
    elapsed_s=10.0,
    loss=0.12345678,
    exploration={"eps": 0.25},
    numbers={"is_success": 0.8249, "score": 1234.5},
    policy_lag={"mean": 1.25, "p99": 2, "largest": 3},
    max_env_steps=120_000,
)


def shown(status: RunStatus, *, is_terminal: bool) -> str:
    out = io.StringIO()
    progress = ConsoleProgress(Console(file=out, force_terminal=is_terminal, width=300), 500.0)
    columns = {"gpu": 0.512345, "phase": "warm"}
    progress.show(RateMeter().measured(status), columns, is_over=True)
    return without_codes(out)


def without_codes(out: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_shows_why_a_run_is_held_up(is_terminal: bool) -> None:
    text = shown(RunStatus(held_up_by="cannot write: ENOSPC"), is_terminal=is_terminal)
    assert "held up: cannot write: ENOSPC" in text.rstrip().splitlines()[-1]
    assert "held up" not in shown(RunStatus(), is_terminal=is_terminal)


def test_table_shows_rates_loss_exploration_lag_time_left_and_columns_of_plugins() -> None:
    text = shown(STATUS, is_terminal=True)
    last = text.splitlines()[-8:]

    assert [re.split(r"\s{2,}", line.strip()) for line in last] == [
        ["10.0 s", "goal 500"],
        ["12,000 env steps (1,200/s)", "3,000 iterations (300/s)"],
        ["return 20.0 (best 30.0)", "success 0.82"],
        ["score 1,234.50", "loss 0.1235"],
        ["eps 0.25", "buffer 10/64"],
        ["policy v3000, lag 1.2", "3 workers"],
        ["1 min 30 s left", "gpu 0.5123"],
        ["phase warm"],
    ]


def test_evaluation_line_names_its_player_and_opponent() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=300)
    progress = ConsoleProgress(console, 500.0)
    progress.on_evaluation(Evaluation(61.25, 12_000, 3_000, 20.04, 9.6, 31.2, 5))
    of_one = {"mean": 0.02, "min": 0.0, "max": 1.0}
    numbers = {"is_success": of_one, **{f"n{index}": of_one for index in range(4)}}
    progress.on_evaluation(Evaluation(6.0, 10, 2, 1.0, 1.0, 1.0, 1, numbers=numbers))
    progress.on_evaluation(Evaluation(7.0, 10, 2, -1.0, -1.0, -1.0, 1, player="player_1"))
    progress.on_evaluation(Evaluation(8.0, 10, 2, 1.0, 1.0, 1.0, 1, "player_1", "random"))

    assert out.getvalue().splitlines() == [
        "[  61.2 s] evaluation: mean return 20.0 (10 to 31, 5 episodes) after 12,000 env steps, "
        "iteration 3,000",
        "[   6.0 s] evaluation: mean return 1.0 (1 to 1, 1 episodes), success 0.02, n0 0.02, "
        "n1 0.02, n2 0.02 after 10 env steps, iteration 2",
        "[   7.0 s] evaluation of player_1: mean return -1.0 (-1 to -1, 1 episodes) after "
        "10 env steps, iteration 2",
        "[   8.0 s] evaluation of player_1 against random: mean return 1.0 (1 to 1, 1 episodes) "
        "after 10 env steps, iteration 2",
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_time_before_the_first_env_step_is_shown_as_starting(is_terminal: bool) -> None:
    out, now = io.StringIO(), [100.0]
    console = Console(file=out, force_terminal=is_terminal, width=300)
    progress = ConsoleProgress(console, 500.0, clock=lambda: now[0])
    now[0] = 103.25
    progress.on_evaluation(Evaluation(0.0, 0, 0, 9.0, 9.0, 9.0, 1))
    now[0] = 104.5
    progress.show(RunStatus(), {})

    text = without_codes(out)
    assert "[starting, 3.2 s] evaluation: mean return 9.0 " in text
    last = r"starting, 4.5 s +goal 500" if is_terminal else r"\[starting, 4.5 s\] 0 env "
    assert re.search(last, text)
    assert "[   0.0 s]" not in text


def test_line_is_printed_every_two_seconds_if_the_status_has_changed() -> None:
    out, now = io.StringIO(), [0.0]
    progress = ConsoleProgress(Console(file=out, width=300), 500.0, clock=lambda: now[0])
    for now[0], env_steps in ((1.9, 10), (LINE_S, 20), (3.9, 30), (2 * LINE_S, 40), (9.0, 40)):
        status = RunStatus(env_steps=env_steps)
        progress.show(RateMeter().measured(status), {})
    for _ in range(2):
        last = RunStatus(env_steps=50)
        progress.show(RateMeter().measured(last), {}, is_over=True)

    steps = [line.split(" env steps")[0].split("] ")[1] for line in out.getvalue().splitlines()]
    assert steps == ["20", "40", "50"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_says_that_a_run_still_trains_after_the_last_env_step(is_terminal: bool) -> None:
    status = dataclasses.replace(STATUS, env_steps=120_000)
    text = "training on what was collected, then a last evaluation"
    out, now = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=is_terminal, width=300)
    progress = ConsoleProgress(console, 500.0, clock=lambda: now[0])
    now[0] = LINE_S
    progress.show(RateMeter().measured(status), {})
    assert text in out.getvalue()
    out.truncate(0)
    last = dataclasses.replace(status, train_iter=3_001)
    progress.show(RateMeter().measured(last), {}, is_over=True)
    assert text not in out.getvalue()
    assert "0 s left" in out.getvalue()


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (["collector", "learner"], "0 s left"),
        (["learner"], "training on what was collected, then a last evaluation"),
        (["learner", "evaluator"], "training on what was collected, then a last evaluation"),
        (["evaluator"], "last evaluation"),
        ([], "0 s left"),
    ],
)
def test_last_phase_of_a_parallel_run_is_that_of_its_tasks(kinds: list[str], text: str) -> None:
    tasks = [RunningTask("", kind, "w", 1, None, False, 1, "") for kind in kinds]
    joined = (WorkerStatus("w", "learner", 1.0),)
    status = dataclasses.replace(STATUS, env_steps=120_000, tasks=tuple(tasks), connected=joined)

    assert _parts(RateMeter().measured(status), {}, is_over=False)[-1] == text


@pytest.mark.parametrize(
    ("left_s", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_time_left_is_shown_in_at_most_two_units(left_s: float, text: str) -> None:
    status = RunStatus(env_steps=10, elapsed_s=10.0, max_env_steps=10 + round(left_s))
    if left_s < 1:
        status = RunStatus(env_steps=100, elapsed_s=10.0, max_env_steps=102)
    assert f", {text} left" in shown(status, is_terminal=False)
