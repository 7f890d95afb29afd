"""The prioritized buffer: waiting, closing, threads, and its state."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from dingsdk.errors import (
    CheckpointCorruptError,
)
from dingsdk.worker import AdvancedReplayBuffer

from .prioritized_rows import (
    batch,
    equal_states,
    make_buffer,
    train,
)


def trained_buffer(**cfg: Any) -> AdvancedReplayBuffer:
    return train(make_buffer(replay_buffer_size=50, **cfg), rounds=12, size=5)


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
        {"metadata": {"use": np.full(50, -2)}},
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
