"""The config section of a number that is a schedule."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta

from dingsdk.config import Count, Finite, Schedule, Scheduled, Section, read_section
from dingsdk.errors import ConfigError, ConfigTypeError, UnknownKeyError


class Learn(Section, frozen=True, kw_only=True):
    """A section with a number that may be a schedule, and one that may not."""

    rate: Scheduled[Finite] = 1.0
    limit: Scheduled[Finite | None] = None
    size: Count = 3


def line(**changes):
    return {"type": "linear", "start": 1.0, "end": 0.2, "env_steps": 100, **changes}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # env steps -5, 0, 25, 50, 100 and 1000
        ({}, [1.0, 1.0, 0.8, 0.6, 0.2, 0.2]),
        ({"type": "cosine"}, [1.0, 1.0, 0.882843, 0.6, 0.2, 0.2]),
        ({"type": "exponential", "end": 0.01}, [1.0, 1.0, 0.316228, 0.1, 0.01, 0.01]),
        ({"warmup": 49}, [0.02, 0.02, 0.52, 1 - 0.8 / 51, 0.2, 0.2]),
        ({"start": 0.2, "end": 1.0}, [0.2, 0.2, 0.4, 0.6, 1.0, 1.0]),
    ],
)
def test_values_equal_a_hand_calculation(given, expected):
    schedule = read_section(Learn, {"rate": line(**given)}).rate

    assert isinstance(schedule, Schedule)
    found = [schedule(step) for step in (-5, 0, 25, 50, 100, 1000)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert schedule(100) == line(**given)["end"]


def test_number_stays_a_number():
    assert read_section(Learn, {"rate": 2, "limit": None}) == Learn(rate=2.0)


@pytest.mark.parametrize(
    ("given", "error", "path", "text"),
    [
        ({"type": "lineer"}, ConfigTypeError, "rate.type", "did you mean 'linear'"),
        ({"env_step": 5}, UnknownKeyError, "rate.env_step", "did you mean 'env_steps'"),
        ({"env_steps": -5}, ConfigTypeError, "rate.env_steps", "whole number >= 1"),
        ({"start": -1.0}, ConfigTypeError, "rate.start", "a number > 0"),
        ({"end": 0}, ConfigTypeError, "rate.end", "a number > 0"),
        ({"end": 1e300}, ConfigTypeError, "rate.end", "a number <= "),
        ({"end": float("nan")}, ConfigTypeError, "rate.end", "a number"),
        ({"type": "exponential", "end": 0}, ConfigError, "rate.end", "never reaches 0"),
        ({"start": float("inf")}, ConfigError, "rate.start", "finite"),
        ({"warmup": 100}, ConfigError, "rate.warmup", "below env_steps"),
    ],
)
def test_wrong_schedule_is_refused_with_its_path(given, error, path, text):
    with pytest.raises(error, match=text) as caught:
        read_section(Learn, {"rate": line(**given)})

    assert caught.value.facts["path"] == path


def test_warmup_begins_inside_the_range_of_the_number():
    class Bounded(Section, frozen=True, kw_only=True):
        """A number with a lower bound."""

        rate: Scheduled[Annotated[float, Meta(ge=1)]] = 5.0

    with pytest.raises(ConfigTypeError) as caught:
        read_section(Bounded, {"rate": line(start=2, end=1, warmup=50)})

    assert caught.value.facts["path"] == "rate.warmup"


def test_missing_end_is_refused():
    with pytest.raises(ConfigError, match=r"rate\.end is missing"):
        read_section(Learn, {"rate": {"start": 1.0, "env_steps": 100}})


def test_value_that_is_neither_is_refused_as_one_of_the_number_alone():
    with pytest.raises(ConfigTypeError, match=r"^rate: expected a number, found 'abc'"):
        read_section(Learn, {"rate": "abc"})


def test_schedule_of_a_number_that_cannot_be_one_is_refused_with_the_numbers_that_can():
    with pytest.raises(ConfigTypeError, match=r"be a schedule.*can: limit, rate$") as caught:
        read_section(Learn, {"size": line()})

    assert caught.value.facts["path"] == "size"
