"""The prioritized buffer: row metadata and how rows leave; contract tests cover the rest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.errors import (
    BufferFullError,
    ConfigError,
    InvalidPriorityError,
    SchemaMismatchError,
    UnknownKeyError,
)
from dingsdk.worker import AdvancedReplayBuffer
from tests.fakes import Scalars

from .prioritized_rows import batch, column, facts, info, make_buffer, row

# Config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cfg", "error", "path"),
    [
        ({"alpha": 1.5}, ConfigError, "alpha"),
        ({"max_use": 1.5}, ConfigError, "max_use"),
        (
            {"thruput_controller": {"sample_min_limit_ratio": 0.5}},
            ConfigError,
            "thruput_controller.sample_min_limit_ratio",
        ),
        ({"thruput_controler": {}}, UnknownKeyError, "thruput_controler"),
        ({"sampler": {"type": "uniform"}}, ConfigError, "sampler.type"),
    ],
)
def test_invalid_settings_are_refused(
    cfg: dict[str, Any], error: type[Exception], path: str
) -> None:
    with pytest.raises(error) as caught:
        make_buffer(**cfg)
    assert caught.value.path == path  # type: ignore[attr-defined]


def test_alpha_reaches_the_sampler_unless_it_has_its_own() -> None:
    assert make_buffer(alpha=0.25).alpha == 0.25
    assert make_buffer(alpha=0.25, sampler={"type": "rank"}).alpha == 0.25
    assert make_buffer(alpha=0.25, sampler={"type": "rank", "alpha": 1.0}).alpha == 1.0
    assert AdvancedReplayBuffer(AdvancedReplayBuffer.default_config()).alpha == 0.6


def test_bounds_of_the_throughput_refuse_pushes_and_samples() -> None:
    limits = {"push_sample_rate_limit": {"max": 2.0, "min": 0.5}, "window_seconds": 1000}
    buffer = make_buffer(thruput_controller=limits)
    buffer.push(batch(0, 1, 2, 3), 0)
    assert buffer.sample(4, 0) is not None
    buffer.push(batch(4, 5, 6), 0)
    with pytest.raises(BufferFullError):
        buffer.push(batch(7, 8, 9), 0)
    assert buffer.count() == 7
    assert buffer.sample(4, 0) is not None
    assert buffer.sample(7, 0) is None
    with pytest.raises(ConfigError) as caught:
        make_buffer(thruput_controller=limits, limiter={"type": "samples_per_insert"})
    assert caught.value.path == "thruput_controller.push_sample_rate_limit"


def test_sampling_waits_for_the_ratio_of_rows() -> None:
    buffer = make_buffer(thruput_controller={"sample_min_limit_ratio": 3})
    buffer.push(batch(0, 1, 2, 3, 4), 0)
    assert buffer.sample(2, 0) is None
    buffer.push(batch(5), 0)
    assert buffer.sample(2, 0) is not None


# Pushing --------------------------------------------------------------------------------------


def test_priorities_of_a_batch_are_used_and_limited_from_below() -> None:
    buffer = make_buffer()
    given = batch(0, 1, priority=np.array([3.0, 0.0], np.float32), use=np.zeros(2, np.int64))
    buffer.push(given.freeze(), 0)
    assert facts(buffer, "priority") == {0: 3.0, 1: 1e-5}
    buffer.push(batch(2), 0)
    assert facts(buffer, "priority")[2] == 3.0


@pytest.mark.parametrize(
    ("bad", "key", "found", "text"),
    [
        (5, "", "int", "row 1: expected dict, found int"),
        ({"use": 3}, "", "none", "row 1: expected a key besides those that sampling adds"),
        ({"collect_iter": 0.5}, "collect_iter", "float", "it is 0.5"),
        ({"policy_iter": []}, "collect_iter", "list", "it is []"),
        ({"collect_iter": [[1], [1, 2]]}, "collect_iter", "list", "collect_iter of row 1"),
        ({"collect_iter": 2**63}, "collect_iter", "int", "it is 9223"),
        ({"collect_iter": np.array([2**63], np.uint64)}, "collect_iter", "ndarray", "it is array"),
        (
            {"collect_iter": torch.ones(1, dtype=torch.bfloat16)},
            *("collect_iter", "Tensor", "it is tensor"),
        ),
    ],
)
def test_a_refused_row_says_what_was_expected_and_found(
    bad: Any, key: str, found: str, text: str
) -> None:
    buffer = make_buffer()
    with pytest.raises(SchemaMismatchError) as caught:
        buffer.push([row(0), bad], 0)
    error = caught.value
    assert (error.key, error.row, error.found) == (key, 1, found)
    assert text in str(error)


@pytest.mark.parametrize(
    "bad",
    [
        *(math.nan, math.inf, -1.0, "1", True, torch.ones(2), 10**400, [1.0], np.bool_(True)),
        *([[1.0], [1.0, 2.0]], torch.tensor(math.inf, dtype=torch.bfloat16)),
    ],
)
def test_a_bad_priority_is_refused_and_nothing_is_pushed(bad: Any) -> None:
    buffer = make_buffer(storage={"type": "object"})
    with pytest.raises(InvalidPriorityError) as caught:
        buffer.push([row(0), row(1, priority=bad)], 0)
    assert caught.value.index == 1
    assert buffer.count() == buffer.push_count == 0


def test_a_pushed_priority_may_be_a_tensor_of_half_precision() -> None:
    buffer = make_buffer(storage={"type": "object"})
    types = [torch.bfloat16, torch.float16, torch.float32]
    rows = [row(n, priority=torch.tensor(0.75, dtype=dtype)) for n, dtype in enumerate(types)]
    buffer.push(rows, 0)
    assert set(facts(buffer, "priority").values()) == {0.75}


def test_bad_priority_or_collect_iter_columns_are_refused() -> None:
    buffer = make_buffer()
    for bad in (np.array([1.0, math.nan]), np.array([True, False]), np.ones((2, 1))):
        with pytest.raises(InvalidPriorityError):
            buffer.push(batch(0, 1, priority=bad), 0)
    for iters in (np.ones(2), np.zeros((2, 0), np.int64), {"of": np.zeros(2, np.int64)}):
        with pytest.raises(SchemaMismatchError) as caught:
            buffer.push(batch(0, 1, collect_iter=iters), 0)
        assert (caught.value.row, caught.value.found) == (None, type(iters).__name__)
    with pytest.raises(SchemaMismatchError) as caught:
        buffer.push([row(0), row(0, collect_iter="new")], 0)
    assert (caught.value.row, caught.value.found) == (1, "str")
    assert buffer.push_count == 0


@pytest.mark.parametrize("key", ["collect_iter", "policy_iter"])
def test_staleness_counts_from_the_oldest_iteration_of_a_row(key: str) -> None:
    arrays, objects = make_buffer(), make_buffer(storage={"type": "object"})
    arrays.push(batch(0, 1, **{key: np.array([[7, 5, 8], [6, 6, 9]])}), 0)
    objects.push([row(0, **{key: [7, 5]}), row(1, **{key: torch.tensor(6)})], 0)
    small, smaller = make_buffer(), make_buffer(storage={"type": "object"})
    small.push(batch(0, 1, **{key: np.array([5, 6], np.uint8)}), 0)
    smaller.push([row(0, **{key: np.uint8(5)}), row(1, **{key: np.array([8, 6], np.uint8)})], 0)
    for buffer in (arrays, objects, small, smaller):
        sample = buffer.sample(2, 10)
        assert dict(zip(column(sample, "action"), column(sample, "staleness"), strict=True)) == {
            0: 5,
            1: 4,
        }


def test_policy_iter_is_used_if_collect_iter_is_none() -> None:
    buffer = make_buffer(storage={"type": "object"})
    buffer.push(row(0, collect_iter=None, policy_iter=4), 0)
    assert facts(buffer, "staleness") == {0: -4}


# Leaving --------------------------------------------------------------------------------------


def test_overwritten_rows_leave_the_queue_of_stale_rows() -> None:
    buffer = make_buffer(max_staleness=10)
    for n in range(2000):
        buffer.push(batch(n, collect_iter=np.array([n])), 0)
    metadata: Any = buffer._contents.metadata
    assert metadata._queue._size <= 2 * 8 + 1000
    assert facts_at(buffer, 2001) == set(range(1992, 2000))
    assert facts_at(buffer, 2004) == set(range(1995, 2000))


def facts_at(buffer: AdvancedReplayBuffer, iteration: int) -> set[int]:
    found: set[int] = set()
    for _ in range(200):
        found.update(column(buffer.sample(2, iteration), "action"))
    return found


# Updating -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda values: torch.tensor(values, dtype=torch.float32, requires_grad=True),
        lambda values: torch.tensor(values, dtype=torch.bfloat16),  # numpy does not have it
        lambda values: np.array([[v, 0.0] for v in values])[:, 0],
    ],
)
def test_priorities_come_in_any_numeric_form(form: Any) -> None:
    buffer = make_buffer()
    buffer.push(batch(*range(4)), 0)
    sample = buffer.sample(4, 0)
    given = info(sample, form([0.5, 2.0, 1.5, 0.25]))
    buffer.update(given)
    expected = dict(zip(column(sample, "action"), [0.5, 2.0, 1.5, 0.25], strict=True))
    found = facts(buffer, "priority")
    assert found == {n: pytest.approx(value + 1e-5) for n, value in expected.items()}
    frozen = {key: np.array(value) for key, value in info(sample, [1.0] * 4).items()}
    for array in frozen.values():
        array.flags.writeable = False
    buffer.update(frozen)
    assert set(facts(buffer, "priority").values()) == {1.00001}


def test_error_for_a_bool_among_ids_names_its_row() -> None:
    buffer = make_buffer()
    buffer.push(batch(*range(3)), 0)
    ids = [0, True, 2]
    with pytest.raises(InvalidPriorityError, match="row 1 is True; it must") as caught:
        buffer.update({**info(buffer.sample(3, 0), np.ones(3)), "replay_unique_id": ids})
    assert caught.value.index == 1


# Sampling -------------------------------------------------------------------------------------


def test_ranges_skip_rows_that_have_left() -> None:
    buffer = make_buffer(max_staleness=5)
    iters = np.array([0, 9, 0, 9, 9, 0])
    buffer.push(batch(*range(6), collect_iter=iters), 0)
    seen = {column(buffer.sample(1, 6, slice(1, None)), "action")[0] for _ in range(60)}
    assert seen == {3, 4}


def test_a_row_drawn_twice_counts_both_uses() -> None:
    buffer = make_buffer()
    buffer.push(batch(0, 1), 0)
    buffer.update(info([buffer.sample(1, 0, slice(0, 1))[0]], [1e12]))  # type: ignore[index]
    sample = buffer.sample(2, 0)
    assert column(sample, "action") == [0, 0]
    assert column(sample, "use") == [2, 3]


def test_statistics_of_sampled_rows_are_reported_when_they_are_due() -> None:
    writer = Scalars()
    attr = {"average_range": 1, "print_freq": 2}
    cfg = {"replay_buffer_size": 8, "monitor": {"sampled_data_attr": attr}}
    buffer = AdvancedReplayBuffer(cfg, writer, instance_name="mine")
    buffer.push(batch(0, 1, 2), 0)
    found = []
    for _ in range(4):
        buffer.sample(1, 0)
        found.append([step for _, step in writer.points.get("mine_sampled/use_mean", [])])
    assert found == [[3], [3], [3, 3], [3, 3]]


def test_sample_is_none_if_too_few_rows_are_not_stale() -> None:
    buffer = make_buffer(max_staleness=4, limiter={"type": "min_size", "min_size": 5})
    buffer.push(batch(*range(8), collect_iter=np.arange(8)), 0)
    assert buffer.sample(1, 9) is None
    assert buffer.count() == 2
