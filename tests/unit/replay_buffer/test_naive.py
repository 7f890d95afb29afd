"""The naive buffer: behaviour that the rules of the test kit do not cover."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
)
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer
from dingsdk.worker.replay_buffer.limiter import MinSizeLimiter
from dingsdk.worker.replay_buffer.storage.arrays import ArrayStorage
from tests.fakes import Scalars
from tests.own_plugins import using

SLOW_DOWN = {"type": "samples_per_insert", "samples_per_insert": 1, "error_buffer": 2}


def make_buffer(**cfg: Any) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": 8, "seed": 0, **cfg})


def row(number: int) -> dict[str, Any]:
    return {"obs": np.full(3, number, np.float32), "action": number, "reward": 0.5}


def batch(*numbers: int) -> SampleBatch:
    return SampleBatch.from_rows([row(number) for number in numbers])


def actions(rows: Any) -> list[int]:
    return [int(each["action"]) for each in rows]


def test_a_sample_size_may_be_a_numpy_integer() -> None:
    buffer = make_buffer()
    buffer.push(batch(1, 2, 3, 4), 0)
    sampled = buffer.sample(np.int64(3), 0)  # type: ignore[arg-type]
    assert sampled is not None
    assert len(sampled) == 3


# Pushing --------------------------------------------------------------------------------------


def test_accept_of_a_custom_storage_is_called_for_each_batch() -> None:
    accepted = []

    class Counting(ArrayStorage):
        def accept(self, rows: Any) -> dict[str, Any]:
            accepted.append(len(rows))
            return super().accept(rows)

    with using(storages={"counting": Counting}):
        buffer = make_buffer(storage={"type": "counting"})
    for numbers in ((1, 2), (3,)):
        buffer.push(batch(*numbers), 0)
    assert accepted == [2, 1]


@pytest.mark.parametrize("storage", ["auto", "array"])
def test_batches_of_other_columns_are_stored_after_a_clear(storage: str) -> None:
    buffer = make_buffer(storage={"type": storage})
    for _ in range(2):
        buffer.push(batch(1, 2), 0)  # the second one is a plain push
    buffer.clear()
    other = SampleBatch({"action": np.array([5, 6], np.int8)})
    for _ in range(2):
        buffer.push(other, 0)
    assert (buffer.count(), buffer.push_count) == (4, 4)
    sampled = buffer.sample(4, 0)
    assert sorted(actions(sampled)) == [5, 5, 6, 6]
    assert set(sampled[0]) == {"action"}  # type: ignore[index]


def test_columns_in_another_order_are_the_same_columns() -> None:
    buffer = make_buffer()
    buffer.push(batch(1), 0)
    buffer.push(SampleBatch(dict(reversed(batch(2).columns.items()))), 0)
    assert actions(buffer.sample(2, 0)) == [1, 2]


def test_a_tuple_is_one_row_and_an_episode_needs_a_list_around_it() -> None:
    buffer = make_buffer()
    buffer.push((1, 2, 3), 0)
    assert buffer.count() == 1
    episodes = make_buffer()
    episodes.push([batch(1, 2), batch(3)], 0)
    found = episodes.sample(2, 0)
    assert isinstance(found, list)
    assert [actions(episode) for episode in found] == [[1, 2], [3]]


def test_objects_share_leaves_unless_deepcopy() -> None:
    for deep in (False, True):
        leaf = torch.zeros(1)
        buffer = make_buffer(deepcopy=deep, storage={"type": "object"})
        buffer.push({"x": leaf}, 0)
        found = buffer.sample(1, 0)
        assert found is not None
        assert (found[0]["x"] is leaf) is not deep
        leaf += 1
        assert buffer.sample(1, 0)[0]["x"].item() == (0 if deep else 1)  # type: ignore[index]


def test_can_sample_checks_the_rows_and_the_limiter() -> None:
    buffer = make_buffer(limiter={"min_size": 3})
    assert buffer.sample(1, 0, replace=True) is None
    buffer.push(batch(1, 2), 0)
    assert not buffer.can_sample(1)
    buffer.push(batch(3), 0)
    assert buffer.can_sample(3)
    assert not buffer.can_sample(4)


# Sampling -------------------------------------------------------------------------------------


def test_update_warns_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    buffer = make_buffer()
    with caplog.at_level(logging.WARNING):
        buffer.update({"priority": [1]})
        buffer.update({"priority": [1]})
    assert len(caplog.records) == 1


# Waiting and closing --------------------------------------------------------------------------


def test_a_closed_buffer_refuses_all_calls() -> None:
    buffer = make_buffer()
    assert buffer.closed is False
    buffer.close()
    assert buffer.closed is True
    for use in (
        lambda: buffer.can_push(1),
        lambda: buffer.can_sample(1),
        lambda: buffer.change_limiter({"type": "min_size"}),
    ):
        with pytest.raises(BufferClosedError):
            use()


def test_change_limiter_takes_effect_at_once() -> None:
    buffer = make_buffer()
    buffer.push(batch(1, 2, 3), 0)
    buffer.change_limiter(SLOW_DOWN)
    with pytest.raises(BufferFullError):
        buffer.push(row(4), 0)
    pushing = threading.Thread(target=buffer.push, args=(row(4), 0, 60.0))
    pushing.start()
    while not buffer._waiting:
        time.sleep(0.001)
    buffer.change_limiter({"type": "min_size"})
    pushing.join(10.0)
    assert buffer.count() == 4


def test_limiter_that_overrides_only_on_insert_is_called_for_each_push() -> None:
    class Listening(MinSizeLimiter):
        inserted: ClassVar[list[int]] = []

        def on_insert(self, n: int) -> None:
            super().on_insert(n)
            self.inserted.append(n)

    with using(limiters={"listening": Listening}):
        buffer = make_buffer(limiter={"type": "listening"})
    for pushed in (batch(1, 2), batch(3), row(4), batch(5, 6)):
        buffer.push(pushed, 0)
    assert Listening.inserted == [2, 1, 1, 2]


# Listeners, totals, reports ---------------------------------------------------------------------


MOMENT_S = 1e-9


@pytest.mark.parametrize(
    ("kind", "cfg"),
    [
        (NaiveReplayBuffer, {"periodic_thruput_seconds": MOMENT_S}),
        (AdvancedReplayBuffer, {"periodic_thruput_seconds": MOMENT_S}),
        (AdvancedReplayBuffer, {"monitor": {"periodic_thruput": {"seconds": MOMENT_S}}}),
    ],
)
def test_pushes_and_samples_report_the_throughput_after_each_period(
    kind: Any, cfg: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    writer = Scalars()
    buffer = kind({"replay_buffer_size": 2, **cfg}, writer, instance_name="mine")

    with caplog.at_level(logging.INFO):
        buffer.push(batch(1, 2, 3), 0)
        buffer.sample(2, 0)

    assert {tag: found for tag, found in writer.points.items() if tag.startswith("mine_sec/")} == {
        "mine_sec/pushed_in": [(3, 3), (0, 3)],
        "mine_sec/sampled_out": [(0, 3), (2, 3)],
        "mine_sec/removed": [(1, 3), (0, 3)],
        "mine_sec/current_have": [(2, 3), (2, 3)],
    }
    assert "mine in 1e-09 s: pushed_in 3" in caplog.text


@pytest.mark.parametrize("kind", ["array", "object"])
def test_the_age_of_sampled_rows_can_be_read_at_any_time(kind: str) -> None:
    buffer = make_buffer(storage={"type": kind}, replay_buffer_size=10)
    assert buffer.sampled_stats() == {}
    buffer.push([{"x": i} for i in range(13)], 0)
    buffer.sample(1, 0, sample_range=slice(-3, -2))
    assert buffer.sampled_stats() == {"age_mean": 2, "age_min": 2, "age_max": 2}


def test_load_state_dict_with_deepcopy_copies_the_rows() -> None:
    shared, own = (NaiveReplayBuffer({"storage": {"type": "object"}}) for _ in range(2))
    state = {"data": [{"x": np.zeros(2)}]}
    shared.load_state_dict(state)
    own.load_state_dict(state, deepcopy=True)
    state["data"][0]["x"][:] = 7
    found = [buffer.sample(1, 0) for buffer in (shared, own)]
    assert [rows[0]["x"].tolist() for rows in found if rows] == [[7, 7], [0, 0]]
