from __future__ import annotations

import math

import pytest

from dingsdk.config import read_section
from dingsdk.policy.sections import EpsilonSchedule


def schedule(**cfg):
    return read_section(EpsilonSchedule, cfg, "policy.other.eps")


def test_linear_reaches_its_end_after_decay_env_steps_and_stays():
    eps = schedule(type="linear", start=1.0, end=0.1, decay=100)

    assert [eps(n) for n in (-5, 0, 50, 100, 1000)] == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])


def test_exp_has_decay_as_time_constant():
    eps = schedule(type="exp", start=0.9, end=0.1, decay=10)

    assert eps(0) == pytest.approx(0.9)
    assert eps(10) == pytest.approx(0.1 + 0.8 / math.e)
    assert eps(1e9) == pytest.approx(0.1)


def test_epsilon_takes_the_keys_and_types_of_other_schedules():
    eps = schedule(type="exponential", start=1.0, end=0.01, env_steps=100)

    assert [eps(n) for n in (0, 50, 100, 200)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert schedule(type="cosine", start=1.0, end=0.0, env_steps=100)(25) == pytest.approx(0.853553)
