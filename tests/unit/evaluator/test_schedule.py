"""The schedule decides when an evaluation is due."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.worker.evaluator.schedule import EvalSchedule
from tests.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def evaluated(section: dict[str, Any], clock: Clock, *moments: tuple[int, int, float]) -> list[int]:
    """Return the evaluated iterations among moments (iteration, env steps, seconds)."""
    schedule = EvalSchedule(section, clock)
    began = clock.now
    found = []
    for train_iter, envstep, seconds in moments:
        clock.now = began + seconds
        if schedule.is_due(train_iter, envstep):
            found.append(train_iter)
            schedule.note(train_iter, envstep)
    return found


def test_policy_is_evaluated_at_the_start_and_every_eval_freq_iterations(clock: Clock) -> None:
    moments = [(n, 0, 0.0) for n in range(0, 3000, 10)]
    assert evaluated({}, clock, *moments) == [0, 1000, 2000]
    assert evaluated({"eval_freq": 700}, clock, *moments) == [0, 700, 1400, 2100, 2800]


def test_env_steps_and_seconds_count_if_configured(clock: Clock) -> None:
    moments = [(1, 64, 0.5), (2, 128, 1.0), (3, 192, 1.5), (4, 256, 2.0)]
    steps = {"eval_freq": None, "eval_freq_env_steps": 100}
    seconds = {"eval_freq": None, "eval_interval_s": 1.5}
    assert evaluated(steps, clock, (0, 0, 0.0), *moments) == [0, 2, 4]
    assert evaluated(seconds, clock, (0, 0, 0.0), *moments) == [0, 3]
    both = {**steps, **seconds}
    assert evaluated(both, clock, (0, 0, 0.0), *moments) == [0, 2, 4]
    assert evaluated({"eval_freq": None}, clock, (0, 0, 0.0), *moments) == [0]


def test_no_iteration_is_evaluated_twice(clock: Clock) -> None:
    section = {"eval_freq_env_steps": 1, "eval_interval_s": 0}
    moments = [(0, 0, 0.0), (0, 500, 60.0), (1, 600, 61.0), (1, 700, 99.0)]
    assert evaluated(section, clock, *moments) == [0, 1]


def test_evaluation_stays_due_until_noted(clock: Clock) -> None:
    schedule = EvalSchedule({"eval_freq": 10}, clock)
    assert schedule.is_due(0, 0)
    assert schedule.is_due(0, 0)
    schedule.note(0, 0)
    assert schedule.is_due(12, 0)
    assert not schedule.is_due(9, 0)
    schedule.reset()
    assert schedule.is_due(9, 0)


def test_saved_schedule_continues_with_another_clock(clock: Clock) -> None:
    schedule = EvalSchedule({"eval_freq": None, "eval_interval_s": 10.0}, clock)
    schedule.note(3, 30)
    clock.now += 4.0
    other = Clock()
    other.now = 5000.0
    resumed = EvalSchedule({"eval_freq": None, "eval_interval_s": 10.0}, other)
    resumed.load_state_dict(schedule.state_dict())

    assert not resumed.is_due(3, 99)
    other.now += 5.5
    assert not resumed.is_due(4, 99)
    other.now += 0.5
    assert resumed.is_due(4, 99)
