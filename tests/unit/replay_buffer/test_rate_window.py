"""The limiter of recent pushes per recent sample, alone and in a buffer."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import BufferFullError, ConfigError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.limiter import PushSampleRateLimiter
from tests.fakes import Clock


def make(clock: Clock | None = None, **cfg: Any) -> PushSampleRateLimiter:
    return PushSampleRateLimiter(cfg, clock=clock or Clock())


def rows(n: int) -> list[dict[str, Any]]:
    return [{"x": np.float32(i)} for i in range(n)]


def test_pushes_are_limited_by_recent_samples() -> None:
    limiter = make(max=2.0)
    assert limiter.can_insert(10**6)
    limiter.on_insert(100)
    assert limiter.can_insert(10**6)
    assert limiter.can_sample(64)
    limiter.on_sample(64)
    assert limiter.can_insert(28)
    assert not limiter.can_insert(29)


def test_samples_are_limited_by_recent_pushes() -> None:
    limiter = make(min=0.5)
    limiter.on_insert(100)
    assert limiter.can_sample(100)
    limiter.on_sample(150)
    assert limiter.can_sample(50)
    assert not limiter.can_sample(51)


def test_a_sample_needs_its_share_of_rows_in_the_buffer() -> None:
    limiter = make(sample_min_limit_ratio=2.0)
    limiter.on_insert(19)
    assert limiter.can_sample(9)
    assert not limiter.can_sample(10)
    limiter.size -= 2
    assert not limiter.can_sample(9)


def test_counts_fall_to_one_percent_in_one_window() -> None:
    clock = Clock()
    limiter = make(clock, min=1.0, window_seconds=7.0)
    limiter.on_insert(1000)
    clock.now += 7.0
    assert limiter.state_dict()["recent_inserts"] == pytest.approx(10.0)
    limiter.on_sample(4)
    assert limiter.can_sample(5)
    assert not limiter.can_sample(7)


@pytest.mark.parametrize(("samples", "expected_s"), [(1, 10.0), (100, 20.0), (1000, 25.0)])
def test_a_refused_push_is_admitted_after_retry_after_s(samples: int, expected_s: float) -> None:
    clock = Clock()
    limiter = make(clock, max=1.0, window_seconds=10.0)
    assert limiter.retry_after_s() is None
    limiter.on_insert(10_000)
    limiter.on_sample(samples)
    limiter.can_sample(1)
    assert not limiter.can_insert(10_000)
    wait_s = limiter.retry_after_s()
    assert wait_s == pytest.approx(expected_s)  # one sample is forgotten after one window
    assert wait_s is not None
    clock.now += wait_s - 0.01
    assert not limiter.can_insert(10_000)
    clock.now += 0.01
    assert limiter.can_insert(10_000)
    clock.now += 1000.0
    assert limiter.retry_after_s() is None


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (1.0, 1.0), (0.9, 1.1), (4.0, 5.0)])
@pytest.mark.parametrize(("push", "batch"), [(1, 64), (64, 1), (100, 100)])
def test_both_sides_never_wait_for_each_other(
    low: float, high: float, push: int, batch: int
) -> None:
    clock, rng = Clock(), np.random.default_rng(0)
    limiter = make(clock, min=low, max=high)
    for _ in range(2000):
        clock.now += rng.exponential(0.5)
        can_sample, can_insert = limiter.can_sample(batch), limiter.can_insert(push)
        assert can_sample or can_insert
        if can_insert and (not can_sample or rng.random() < 0.5):
            limiter.on_insert(push)
        else:
            limiter.on_sample(batch)
    assert limiter.samples
    assert limiter.inserts


@pytest.mark.parametrize("cfg", [{"max": 0}, {"min": math.inf}, {"min": 2, "max": 1}], ids=str)
def test_invalid_settings_are_refused(cfg: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**cfg)
    assert caught.value.path.startswith("limiter.")  # type: ignore[attr-defined]


# In a buffer ----------------------------------------------------------------------------------


def make_buffer(size: int = 1000, **cfg: Any) -> NaiveReplayBuffer:
    limiter = {"type": "push_sample_rate", **cfg}
    return NaiveReplayBuffer({"replay_buffer_size": size, "seed": 0, "limiter": limiter})


def test_a_waiting_push_is_admitted_after_some_time() -> None:
    # There are no other pushes or samples meanwhile: the recent counts decay within 0.2 s.
    with make_buffer(max=1.0, window_seconds=0.1) as buffer:
        buffer.push(rows(100), 0)
        assert buffer.sample(100, 0) is not None
        with pytest.raises(BufferFullError) as caught:
            buffer.push(rows(50), 0)
        assert caught.value.retryable
        assert buffer.count() == 100
        began_s = time.monotonic()
        buffer.push(rows(50), 0, timeout_s=20.0)
        assert time.monotonic() - began_s < 10.0
        assert buffer.count() == 150
