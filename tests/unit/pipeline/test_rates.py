"""Smoothed rates, and the remaining time computed from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dingsdk.pipeline.context import RunStatus
from dingsdk.pipeline.progress import Rate, RateMeter


def test_rate_is_that_of_the_last_ten_seconds() -> None:
    rate = Rate()
    counts = [(2.0, 20), (6.0, 100), (12.0, 200), (17.0, 210)]

    assert [rate.of(count, at_s) for at_s, count in counts] == [
        20 / 2,
        100 / 6,
        (200 - 20) / 10,
        (210 - 100) / 11,
    ]


def test_counts_of_a_loaded_checkpoint_are_not_part_of_the_rate() -> None:
    rates = RateMeter()
    loaded = RunStatus(loaded_env_steps=5000, loaded_train_iter=300)
    first = replace(loaded, env_steps=5010, train_iter=0, elapsed_s=1.0)
    second = replace(loaded, env_steps=5020, train_iter=302, elapsed_s=2.0)

    assert rates.of(first) == (pytest.approx(10.0), 0.0, None)
    assert rates.of(second)[:2] == (pytest.approx(10.0), pytest.approx(1.0, rel=0.1))


def test_rate_is_never_negative_and_repeated_iterations_count_again() -> None:
    rate = Rate()
    assert rate.of(100, 1.0) == 100.0
    assert rate.of(40, 2.0) == 20.0
    assert rate.of(40, 12.0) == 0.0
    assert rate.of(1040, 22.0) == 100.0


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

    assert RateMeter().of(status) == (10.0, 2.0, expected)
