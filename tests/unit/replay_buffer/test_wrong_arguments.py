"""Arguments that a replay buffer cannot use: an error says so, and nothing changes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import (
    BufferFullError,
    CheckpointCorruptError,
    ConfigError,
    ConfigTypeError,
    NotSavableError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer import (
    AdvancedReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)
from dingsdk.worker.replay_buffer.table import checked_timeout

KINDS = [NaiveReplayBuffer, SequenceReplayBuffer]


def filled(kind: Any = NaiveReplayBuffer, rows: int = 4, **changes: Any) -> Any:
    buffer = kind({"replay_buffer_size": 8, "seed": 0, **changes})
    for index in range(rows):
        buffer.push({"x": float(index)}, 0)
    return buffer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("timeout_s", "error"),
    [
        (math.nan, ConfigError),
        (np.float32("nan"), ConfigError),
        ("3", ConfigTypeError),
        ([1.0], ConfigTypeError),
        (True, ConfigTypeError),
    ],
)
def test_a_timeout_that_is_no_number_of_seconds_is_refused(
    kind: Any, timeout_s: Any, error: type[Exception]
) -> None:
    buffer = filled(kind, 0)
    with pytest.raises(error, match="timeout_s"):
        buffer.push({"x": 1.0}, 0, timeout_s=timeout_s)
    assert buffer.count() == 0
    with pytest.raises(error, match="timeout_s"):
        buffer.sample(2, cur_learner_iter=0, timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", [math.inf, 2**63, 10**400, np.float64(1e300)])
def test_a_huge_timeout_waits(timeout_s: Any) -> None:
    buffer = filled()
    assert len(buffer.sample(2, 0, timeout_s=timeout_s)) == 2
    waits: list[float] = []
    contents = buffer._contents
    buffer._changed.wait = lambda rest_s: waits.append(rest_s) or contents.insert([{"x": 1.0}], 1)
    assert len(buffer.sample(5, 0, timeout_s=timeout_s)) == 5
    assert waits == [pytest.approx(checked_timeout(timeout_s))]


@pytest.mark.parametrize("timeout_s", [-1, -math.inf, np.int8(0)])
def test_a_timeout_that_is_over_does_not_wait(timeout_s: Any) -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 3}
    buffer = filled(rows=1, limiter=limiter)
    assert buffer.sample(5, 0, timeout_s=timeout_s) is None
    with pytest.raises(BufferFullError, match="waited 0 s"):
        buffer.push([{"x": 1.0}] * 8, 0, timeout_s=timeout_s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [-1, "x", None, 1.5, 10**400])
def test_a_size_that_is_no_number_of_rows_is_refused(kind: Any, size: Any) -> None:
    buffer = filled(kind)
    for call, what in (
        (buffer.can_sample, "a sample size"),
        (buffer.can_push, "a number of rows"),
        (lambda n: buffer.sample(n, 1), "a sample size"),
    ):
        with pytest.raises(ConfigError, match=f"^{what}: expected an integer from 0 to"):
            call(size)


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
@pytest.mark.parametrize(
    "sample_range", [3, slice(None, None, 0), slice("a", None), slice(0.5, 2), slice(0, math.inf)]
)
def test_a_range_that_is_no_slice_of_integers_is_refused(kind: Any, sample_range: Any) -> None:
    with pytest.raises(ConfigError, match="sample_range"):
        filled(kind).sample(1, 0, sample_range=sample_range)


@pytest.mark.parametrize("learner_iter", [math.nan, "x", None, 1.5, -1, 2**63])
@pytest.mark.parametrize("changes", [{}, {"max_staleness": 4}])
def test_a_wrong_learner_iteration_leaves_the_random_state(
    learner_iter: Any, changes: dict[str, Any]
) -> None:
    buffer, twin = filled(AdvancedReplayBuffer, **changes), filled(AdvancedReplayBuffer, **changes)
    with pytest.raises(ConfigError, match="cur_learner_iter"):
        buffer.sample(3, learner_iter)
    assert buffer.sample(3, np.int64(1)) == twin.sample(3, 1)


@pytest.mark.parametrize("beta", ["x", None, math.nan, 2, -1, [0.5]])
def test_a_beta_outside_of_0_to_1_is_refused(beta: Any) -> None:
    buffer = filled(AdvancedReplayBuffer)
    with pytest.raises(ConfigError, match="beta"):
        buffer.beta = beta
    buffer.beta = np.float32(0.5)
    assert buffer.beta == 0.5


@pytest.mark.parametrize("state", [None, "x", [], "data"])
def test_a_state_that_is_no_mapping_is_refused(state: Any) -> None:
    buffer = filled()
    with pytest.raises(CheckpointCorruptError, match="mapping"):
        buffer.load_state_dict(state)
    assert buffer.count() == 4


def nested(make: Callable[[Any], Any], is_endless: bool) -> Any:
    if is_endless:
        value: Any = make(None)
        if isinstance(value, list):
            value[0] = value
        else:
            value["a"] = value
        return value
    value = make(1.0)
    for _ in range(5000):
        value = make(value)
    return value


@pytest.mark.parametrize("kind", ["auto", "array", "object"])
@pytest.mark.parametrize("is_endless", [False, True])
@pytest.mark.parametrize("make", [lambda value: {"a": value}, lambda value: [value]])
def test_a_row_that_is_nested_too_deeply_is_refused(
    kind: str, is_endless: bool, make: Callable[[Any], Any]
) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 4, "storage": {"type": kind}})
    for row in ({"x": nested(make, is_endless)}, [[nested(make, is_endless)]]):
        with pytest.raises(SchemaMismatchError):
            buffer.push(row, 0)
    assert buffer.count() == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_buffer_cannot_be_copied_or_pickled(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(NotSavableError, match=r"state_dict.*ReplayServer"):
        copied(filled())
