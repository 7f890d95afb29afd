"""The prioritized buffer: waiting, closing, threads, and its state."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    CheckpointCorruptError,
)
from dingsdk.worker import AdvancedReplayBuffer
from dingsdk.worker.replay_buffer.row_metadata import ADDED

from .prioritized_rows import (
    STORAGES,
    batch,
    column,
    equal_states,
    facts,
    info,
    make_buffer,
    row,
    train,
)

# Waiting, closing, threads --------------------------------------------------------------------


def test_a_waiting_sample_gets_the_rows_that_are_pushed() -> None:
    buffer = make_buffer()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(buffer.sample(2, 0, timeout_s=10)))
    thread.start()
    buffer.push(batch(0), 0)
    buffer.push(batch(1), 0)
    thread.join(10)
    assert len(found[0]) == 2


def test_a_closed_buffer_refuses_everything() -> None:
    buffer = make_buffer()
    buffer.push(batch(0, 1), 0)
    given = info(buffer.sample(2, 0), [1.0, 1.0])
    buffer.close()
    buffer.close()
    for call in (lambda: buffer.update(given), lambda: buffer.sample(1, 0), buffer.state_dict):
        with pytest.raises(BufferClosedError):
            call()
    assert buffer.count() == 0


def test_threads_leave_a_consistent_buffer() -> None:
    buffer = AdvancedReplayBuffer(
        {"replay_buffer_size": 300, "seed": 0, "max_use": 20, "max_staleness": 400}
    )
    stop = threading.Event()
    failures: list[BaseException] = []
    iteration = [0]

    def work(step: Any) -> None:
        try:
            while not stop.is_set():
                step()
        except BaseException as error:
            failures.append(error)
            stop.set()

    def push() -> None:
        n = iteration[0]
        buffer.push(batch(*range(7), collect_iter=np.full(7, n)), n)

    def learn() -> None:
        iteration[0] += 1
        sample = buffer.sample(16, iteration[0])
        if sample is not None:
            assert isinstance(sample, SampleBatch)
            weights = sample.columns["IS"]
            assert np.all((weights > 0) & (weights <= 1))
            buffer.update(info(sample, sample.columns["priority"] * 1.01))

    def disturb() -> None:
        buffer.state_dict()
        buffer.clear()
        time.sleep(0.01)

    threads = [
        threading.Thread(target=work, args=(step,))
        for step in (push, push, push, learn, learn, learn, disturb)
    ]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert not failures, failures
    stats = buffer.stats()
    assert stats.pushed == stats.count + stats.left
    sampler: Any = buffer._sampler
    metadata: Any = buffer._metadata
    assert sampler.drawable == buffer.count()
    weights = sampler._tree.weights
    assert sampler._tree.total == pytest.approx(math.fsum(weights), rel=1e-9)
    where = np.flatnonzero(metadata.ids(np.arange(300)) >= 0)
    assert where.tolist() == np.flatnonzero(weights).tolist()
    assert len(set(metadata.ids(where).tolist())) == len(where)


# State ----------------------------------------------------------------------------------------


def trained_buffer(**cfg: Any) -> AdvancedReplayBuffer:
    return train(make_buffer(replay_buffer_size=50, **cfg), rounds=12, size=5)


@pytest.mark.parametrize("sampler", ["proportional", "rank"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_loaded_buffer_continues_exactly_like_the_saved_one(sampler: str, storage: str) -> None:
    cfg = {
        "max_use": 2,
        "max_staleness": 9,
        "sampler": {"type": sampler},
        "storage": {"type": storage},
    }
    old = trained_buffer(**cfg)
    new = make_buffer(replay_buffer_size=50, **{**cfg, "seed": 77})
    new.push(batch(1, 2, 3), 0)
    new.load_state_dict(old.state_dict())
    assert old.stats().used_up > 0
    assert new.count() == old.count()
    for n in range(12, 30):
        for buffer in (old, new):
            buffer.push(batch(*range(n, n + 5), collect_iter=np.full(5, n)), n)
        ours, theirs = old.sample(5, n), new.sample(5, n)
        for key in ("action", *ADDED):
            assert column(ours, key) == column(theirs, key)
        for buffer in (old, new):
            buffer.update(info(ours, np.array(column(ours, "action")) % 5))
    assert (new.count(), new.push_count, new.beta) == (old.count(), old.push_count, old.beta)
    stats = new.stats()
    assert stats.pushed == stats.count + stats.left


@pytest.mark.parametrize(
    "change",
    [
        {"beta": 2.0},
        {"beta": None},
        {"next_unique_id": 1},
        {"next_unique_id": "7"},
        {"metadata": None},
        {"metadata": 5},
        {"metadata": {"use": [[1], [1, 2]]}},
        {"metadata": {"next_unique_id": 1}},
        {"metadata": {"next_unique_id": "7"}},
        {"metadata": {"replay_unique_id": np.zeros(50, np.int64)}},
        {"metadata": {"replay_unique_id": np.arange(49)}},
        {"metadata": {"replay_unique_id": np.full(50, -1)}},
        {"metadata": {"use": np.full(50, 0.5)}},
        {"metadata": {"collect_iter": None}},
    ],
)
def test_an_inconsistent_state_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    state = trained_buffer().state_dict()
    buffer = trained_buffer(seed=3)
    before = buffer.state_dict()
    if isinstance(change.get("metadata"), dict):
        change = {"metadata": {**state["metadata"], **change["metadata"]}}
    with pytest.raises(CheckpointCorruptError):
        buffer.load_state_dict({**state, **change})
    assert equal_states(buffer.state_dict(), before)


@pytest.mark.parametrize("beyond", [0, 1])
def test_next_id_must_be_above_the_ids_of_all_rows(beyond: int) -> None:
    state, buffer = trained_buffer().state_dict(), trained_buffer(seed=3)
    next_id = int(state["metadata"]["replay_unique_id"].max()) + beyond
    state["metadata"] = {**state["metadata"], "next_unique_id": next_id}
    if beyond:
        buffer.load_state_dict(state)
    else:
        with pytest.raises(CheckpointCorruptError, match=f"a row has the id {next_id} already"):
            buffer.load_state_dict(state)


def test_rows_loaded_from_a_list_are_pushed_with_their_priorities() -> None:
    buffer = make_buffer()
    buffer.load_state_dict({"data": [row(0, priority=4.0), row(1)]})
    assert facts(buffer, "priority") == {0: 4.0, 1: 1.0}


def test_a_state_whose_priorities_do_not_match_its_rows_is_refused() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4, "seed": 0, "max_use": 9})
    buffer.push(batch(1, 2, 3, 4), 0)
    state = buffer.state_dict()
    state["metadata"]["replay_unique_id"][1] = -1
    for key in ("weights", "priorities"):
        state["sampler"][key][2] = 0.0
    with pytest.raises(CheckpointCorruptError, match="do not match"):
        buffer.load_state_dict(state)
    assert buffer.count() == 4


def _push_later(buffer: Any, rows: int) -> threading.Thread:
    """Push in a thread; return when the push waits for the limiter."""
    thread = threading.Thread(
        target=buffer.push, args=(batch(*range(rows)), 0), kwargs={"timeout_s": 60.0}, daemon=True
    )
    thread.start()
    deadline = time.monotonic() + 20.0
    while not buffer._waiting:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return thread


def test_a_larger_sample_than_any_before_admits_a_waiting_push() -> None:
    # The tolerance in each direction is half the sum of the largest push and batch.
    limiter = {"type": "samples_per_insert", "min_size": 20}
    buffer = make_buffer(replay_buffer_size=64, limiter=limiter)
    for i in range(20):
        buffer.push(batch(i), 0)
    thread = _push_later(buffer, 4)
    assert len(buffer.sample(8, 0, timeout_s=6.0)) == 8
    thread.join(20.0)
    assert (buffer.count(), buffer._waiting) == (24, 0)


def test_clear_admits_a_waiting_push() -> None:
    limiter = {"type": "samples_per_insert", "error_buffer": 1.0}
    buffer = make_buffer(limiter=limiter)
    buffer.push(batch(0), 0)
    thread = _push_later(buffer, 2)
    buffer.clear()
    thread.join(10.0)
    assert not thread.is_alive()
    assert (buffer.count(), buffer._waiting) == (2, 0)
