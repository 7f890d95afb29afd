"""Smoothed rates, and the remaining time computed from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dingsdk.pipeline.context import RunStatus
from dingsdk.pipeline.status_file import RateMeter


def test_rate_is_that_of_the_last_ten_seconds_and_never_negative() -> None:
    meter = RateMeter()
    counts = [(2.0, 20), (6.0, 100), (12.0, 200), (17.0, 210), (18.0, 40), (28.0, 40), (38.0, 1040)]
    seen = [meter.measured(RunStatus(env_steps=n, elapsed_s=at_s)) for at_s, n in counts]

    expected = [20 / 2, 100 / 6, (200 - 20) / 10, (210 - 100) / 11, 0.0, 0.0, 1000 / 10]
    assert [status.env_steps_per_s for status in seen] == expected


def test_counts_of_a_loaded_checkpoint_are_not_part_of_the_rate() -> None:
    meter = RateMeter()
    loaded = RunStatus(loaded_env_steps=5000, loaded_train_iter=300)
    first = meter.measured(replace(loaded, env_steps=5010, train_iter=0, elapsed_s=1.0))
    second = meter.measured(replace(loaded, env_steps=5020, train_iter=302, elapsed_s=2.0))

    assert (first.env_steps_per_s, first.updates_per_s, first.left_s) == (10.0, 0.0, None)
    assert (second.env_steps_per_s, second.updates_per_s) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_env_steps": 300}, 20.0),
        ({"max_train_iter": 40}, 10.0),
        ({"max_env_steps": 300, "max_train_iter": 40}, 10.0),
        ({"max_env_steps": 90}, 0.0),
    ],
)
def test_time_left_is_the_time_to_the_first_limit(limits: dict[str, int], expected: float) -> None:
    status = RunStatus(env_steps=100, train_iter=20, elapsed_s=10.0, **limits)

    assert RateMeter().measured(status).left_s == expected
