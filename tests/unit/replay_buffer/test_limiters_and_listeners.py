"""What limiters and listeners are told about inserted and removed rows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, SchemaMismatchError
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer, NaiveReplayBuffer, RowListener

KINDS = [NaiveReplayBuffer, AdvancedReplayBuffer]


class Recorder(RowListener):
    def __init__(self) -> None:
        self.inserted: list[Any] = []
        self.removed: list[Any] = []

    def on_insert(self, rows: Any) -> None:
        self.inserted += [dict(row) for row in rows]

    def on_remove(self, rows: Any, reason: str) -> None:
        self.removed += rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(6,), (7,), (4, 20), (2, 3, 4)])
def test_limiter_knows_how_many_rows_there_are(kind: Any, sizes: tuple[int, ...]) -> None:
    buffer = kind({"replay_buffer_size": 6})
    for n in sizes:
        buffer.push(SampleBatch({"x": np.arange(n)}), 0)
        limiter = buffer._contents.limiter
        assert (limiter.size, limiter.inserts) == (buffer.count(), buffer.push_count)
    buffer.clear()
    assert (limiter.size, limiter.inserts) == (0, 0)


def test_push_that_waits_is_admitted_when_the_rows_for_a_sample_are_stale() -> None:
    limiter = {"type": "samples_per_insert", "samples_per_insert": 4, "error_buffer": 50}
    buffer = AdvancedReplayBuffer({"limiter": limiter, "max_staleness": 3, "seed": 0})
    old, new = (
        SampleBatch({"x": np.arange(n), "collect_iter": np.full(n, age)})
        for n, age in ((10, 0), (4, 9))
    )
    buffer.push(SampleBatch.concat([old, new]), 0)
    pushing = threading.Thread(target=buffer.push, args=(new, 0, 60.0))
    pushing.start()
    while not buffer._waiting:
        time.sleep(0.001)
    assert buffer.sample(8, 9) is None
    pushing.join(10)
    assert buffer.count() == 8
    assert buffer.sample(8, 9) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_that_fails_after_rows_were_stored_is_logged(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Recorder):
        def on_insert(self, rows: Any) -> None:
            super().on_insert(rows)
            raise RuntimeError("no more")

    buffer = kind({"replay_buffer_size": 6, "limiter": {"type": "min_size", "min_size": 2}})
    failing, recorder = Failing(), Recorder()
    buffer.add_listener(failing)
    buffer.add_listener(recorder)
    buffer.push([{"x": 1}, {"x": 2}], 0)
    assert len(buffer.sample(2, cur_learner_iter=0)) == 2
    buffer.load_state_dict(buffer.state_dict())
    assert len(buffer.sample(2, cur_learner_iter=0)) == 2
    assert len(failing.inserted) == len(recorder.inserted) == 4
    assert ["insert listener failed" in text for text in caplog.messages] == [True, True]


@pytest.mark.parametrize("storage", ["array", "object"])
def test_listeners_get_rows_without_the_keys_that_sampling_adds(storage: str) -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4, "storage": {"type": storage}})
    recorder = Recorder()
    buffer.add_listener(recorder)
    buffer.push([{"x": 1, "priority": 3.0, "IS": 0.5}, {"x": 2, "priority": None, "IS": 0.5}], 0)
    buffer.push({"x": 3, "priority": 1.0, "IS": 0.5}, 0)
    assert [sorted(row) for row in recorder.inserted] == [["x"]] * 3


class Strict(RowListener):
    def check(self, rows: Any) -> None:
        if any(row["x"] > 4 for row in rows):
            raise SchemaMismatchError("too large")


@pytest.mark.parametrize("kind", KINDS)
def test_state_whose_rows_a_listener_refuses_changes_nothing(kind: Any) -> None:
    other, buffer = kind({"replay_buffer_size": 6}), kind({"replay_buffer_size": 6})
    other.push([{"x": 3}, {"x": 7}], 0)
    buffer.push({"x": 1}, 0)
    buffer.add_listener(Strict())
    with pytest.raises(CheckpointCorruptError, match="too large"):
        buffer.load_state_dict(other.state_dict())
    assert [row["x"] for row in buffer.sample(1, 0)] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_listener_that_overrides_only_check_is_called_before_each_push(kind: Any) -> None:
    buffer = kind({"replay_buffer_size": 6})
    buffer.push(SampleBatch({"x": np.arange(2)}), 0)
    buffer.add_listener(Strict())
    buffer.push(SampleBatch({"x": np.arange(2)}), 0)
    for rows in (SampleBatch({"x": np.array([1, 7])}), [{"x": 7}], {"x": 7}):
        with pytest.raises(SchemaMismatchError, match="too large"):
            buffer.push(rows, 0)
    assert (buffer.count(), buffer.push_count) == (4, 4)


def test_listeners_get_copies_of_rows_that_left() -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 2, "storage": {"type": "object"}})
    recorder = Recorder()
    buffer.add_listener(recorder)
    rows: list[Any] = [{"note": ["a"]}, {"note": ["b"]}]
    buffer.push(rows, 0)
    for row in rows:
        row["note"].append("changed by the caller")
    buffer.push([{"note": ["c"]}], 0)
    recorder.removed[0]["note"].append("changed by the listener")
    buffer.clear()
    assert recorder.removed[1:] == [{"note": ["b"]}, {"note": ["c"]}]


FORK = """
import os, threading
from dingsdk.errors import BufferClosedError
from dingsdk.worker.replay_buffer import NaiveReplayBuffer, RowListener

class Waiting(RowListener):
    def on_insert(self, rows):
        is_busy.set()
        may_end.wait()

is_busy, may_end = threading.Event(), threading.Event()
idle, busy = (NaiveReplayBuffer({"replay_buffer_size": 4}, instance_name=n) for n in "ab")
for buffer in (idle, busy):
    buffer.push([{"x": 1.0}, {"x": 2.0}], 0)
busy._listeners.add(Waiting())
busy._contents.choose_push_path()
thread = threading.Thread(target=busy.push, args=({"x": 3.0}, 0))
thread.start()
is_busy.wait()
child = os.fork()
if not child:
    idle.push({"x": 3.0}, 0)
    assert idle.sample(3, 0).columns["x"].sum() == 6
    for use in (lambda: busy.push({"x": 4.0}, 0), lambda: busy.sample(1, 0), busy.clear):
        try:
            use()
        except BufferClosedError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    assert (busy.count(), busy.stats().pushed) == (0, 3)
    busy.close()
    os._exit(7)
may_end.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert busy.count() == 3
"""


def test_a_forked_process_can_use_only_the_buffers_that_were_not_in_use() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    subprocess.run(command, check=True, timeout=60)
