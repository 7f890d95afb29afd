"""Samplers and limiters, mostly without a buffer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dingsdk.errors import CheckpointCorruptError, SchemaMismatchError
from dingsdk.worker.replay_buffer.limiter import SamplesPerInsertLimiter
from dingsdk.worker.replay_buffer.sampler import check_ranks
from dingsdk.worker.replay_buffer.sampler.uniform import COMPILED_FROM, UniformSampler


@settings(deadline=None)  # the first example imports the compiler
@given(
    population=st.integers(1, 300),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_compiled_draws_equal_those_of_numpy(population: int, share: float, seed: int) -> None:
    size = max(1, round(share * population / 2))
    small, large = (UniformSampler({}, rows, seed) for rows in (COMPILED_FROM - 1, COMPILED_FROM))
    for _ in range(3):
        assert small.draw(population, size).tolist() == large.draw(population, size).tolist()
    assert small.state_dict() == large.state_dict()


def test_compiled_draws_return_each_rank_once() -> None:
    from dingsdk.worker.replay_buffer.kernels import add_distinct

    # The hash table has 16 slots for 4 ranks, so some pairs collide.
    for first, other in itertools.permutations([0, *range(200, 256)], 2):
        drawn = np.array([first, other, first, other, 7, first, 9]) / 256
        ranks = np.empty(4, np.int64)
        assert add_distinct(drawn, 256, ranks, 0) == 4
        assert ranks.tolist() == [first, other, 7, 9]


@pytest.mark.parametrize(
    "change",
    [
        {"bit_generator": "MT19937"},
        {"state": "x"},
        {"state": 5},
        {"inc": hex(2**200)},
        {"state": "-0x1"},
        {"has_uint32": "x"},
        {"uinteger": 2**70},
    ],
    ids=str,
)
def test_a_wrong_random_state_is_refused_and_changes_nothing(change: dict[str, object]) -> None:
    sampler, twin = UniformSampler({}, 1, seed=0), UniformSampler({}, 1, seed=0)
    with pytest.raises(CheckpointCorruptError):
        sampler.load_state_dict({**sampler.state_dict(), **change})
    with pytest.raises(CheckpointCorruptError):
        sampler.load_state_dict({})
    assert sampler.draw(100, 5).tolist() == twin.draw(100, 5).tolist()


@pytest.mark.parametrize("error_buffer", [None, 40.0, 400.0])
@pytest.mark.parametrize(("chunk", "batch", "ratio"), [(8, 4, 2.0), (1, 32, 0.5), (16, 16, 4.0)])
def test_samples_per_insert_is_kept_without_deadlocks(
    error_buffer: float | None, chunk: int, batch: int, ratio: float
) -> None:
    cfg = {"samples_per_insert": ratio, "min_size": 20, "error_buffer": error_buffer}
    limiter = SamplesPerInsertLimiter(cfg)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        can_push, can_sample = limiter.can_insert(chunk), limiter.can_sample(batch)
        assert can_push or can_sample
        if can_push and (not can_sample or rng.random() < 0.5):
            limiter.on_insert(chunk)
        else:
            limiter.on_sample(batch)
        if limiter.samples:
            owed = limiter.inserts * ratio - limiter.samples
            slack = error_buffer or (chunk * ratio + batch) / 2
            # Without an error_buffer, all rows before the first batch count for the start.
            first = max(20 + chunk, 0 if error_buffer else batch)
            assert 20 * ratio - slack <= owed <= first * ratio + slack
    assert limiter.samples > 1000


@pytest.mark.parametrize(("pushed", "batch"), [(32, 16), (8, 128), (512, 128), (1, 16)])
@pytest.mark.parametrize("updates", [1, 2, 16])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_collects_and_batches_in_turns_are_admitted_at_their_own_ratio(
    pushed: int, batch: int, updates: int, share: float
) -> None:
    ratio = share * updates * batch / pushed
    limiter = SamplesPerInsertLimiter({"samples_per_insert": ratio})
    for _ in range(500):
        assert limiter.can_insert(pushed)
        limiter.on_insert(pushed)
        for _ in range(updates):
            if limiter.can_sample(batch) and limiter.size >= batch:
                limiter.on_sample(batch)
    owed = limiter.inserts * ratio - limiter.samples
    assert abs(owed) <= (pushed + batch) * ratio + batch


def test_the_ratio_holds_once_min_size_is_reached() -> None:
    cfg = {"samples_per_insert": 1, "min_size": 2, "error_buffer": 2}
    limiter = SamplesPerInsertLimiter(cfg)
    limiter.on_insert(1)
    assert limiter.can_insert(100)
    assert not limiter.can_sample(1)
    limiter.on_insert(1)
    assert limiter.can_insert(2)
    assert not limiter.can_insert(3)
    assert limiter.can_sample(2)
    assert not limiter.can_sample(3)


@pytest.mark.parametrize(("ahead", "most"), [(0, 10), (4, 12), (None, 20)])
def test_sampling_may_be_ahead_by_samples_ahead(ahead: float | None, most: int) -> None:
    cfg = {"samples_per_insert": 2, "min_size": 10, "error_buffer": 20, "samples_ahead": ahead}
    limiter = SamplesPerInsertLimiter(cfg)
    for _ in range(10):
        assert limiter.can_insert(2)
        limiter.on_insert(2)
    assert not limiter.can_insert(2)  # 44 would be owed; 20 from the start and 20 more are allowed
    count = 0
    while limiter.can_sample(2):
        limiter.on_sample(2)
        count += 1
    assert count == most  # (40 - 20 + ahead) / 2


@pytest.mark.parametrize(
    "ranks",
    [
        np.array([0, 5]),
        np.array([-1, 0]),
        ["a", "b"],
    ],
    ids=repr,
)
def test_error_for_invalid_draws_shows_them(ranks: Any) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        check_ranks(ranks, 5, 2, UniformSampler({}, 5))
    shown = " ".join(repr(ranks).split())
    text = f"the draw of UniformSampler: expected int64[2] of 0..4, found {shown}"
    assert str(caught.value) == text
    check_ranks(np.array([0, 4]), 5, 2, UniformSampler({}, 5))
