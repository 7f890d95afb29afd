"""AsyncDataLoader: batches in order, loaded ahead; ``next`` raises errors. And LockContext."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from dingsdk.data import AsyncDataLoader
from dingsdk.errors import ConfigError, WorkerCrashedError
from dingsdk.runtime import LockContext, LockContextType

from .child_samples import broken, end_of_process, sample, tensor_sample


class Source:
    """Counts its calls."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self.calls = 0

    def __call__(self, batch_size: int) -> list[Any]:
        first = self.calls * batch_size
        self.calls += 1
        return [self._make(first + i) for i in range(batch_size)]


@pytest.mark.parametrize(
    ("num_workers", "load"),
    [(0, tensor_sample), (2, sample), pytest.param(2, tensor_sample, marks=pytest.mark.slow)],
)
def test_batches_come_in_order_from_the_configured_processes(
    num_workers: int, load: Callable[[int], dict[str, Any]]
) -> None:
    source = Source(lambda index: partial(load, index))
    with AsyncDataLoader(source, 4, chunk_size=2, num_workers=num_workers) as loader:
        first, second = next(loader), next(loader)

    assert first["index"].tolist() == [0, 1, 2, 3]
    assert second["index"].tolist() == [4, 5, 6, 7]
    assert (os.getpid() in first["pid"].tolist()) is (num_workers == 0)


def test_loader_is_an_iterator_of_batches() -> None:
    with AsyncDataLoader(Source(tensor_sample), 1) as loader:
        assert [batch["index"].item() for batch in islice(loader, 3)] == [0, 1, 2]


def test_samples_that_are_not_callable_are_only_collated() -> None:
    with AsyncDataLoader(Source(tensor_sample), 2) as loader:
        assert next(loader)["index"].tolist() == [0, 1]


def test_own_collate_function_gets_the_list_of_samples() -> None:
    with AsyncDataLoader(Source(tensor_sample), 3, collate_fn=len) as loader:
        assert next(loader) == 3


def test_tensors_of_a_batch_go_to_the_device_and_nothing_else() -> None:
    def collate(samples: Any) -> dict[str, Any]:
        return {"tensor": samples[0]["index"], "text": "x"}

    source = Source(tensor_sample)
    with AsyncDataLoader(source, 1, device="meta", collate_fn=collate) as loader:
        batch = next(loader)
    assert batch["tensor"].device.type == "meta"
    assert batch["text"] == "x"


def test_at_most_two_batches_are_loaded_ahead() -> None:
    taken = threading.Semaphore(0)
    source = Source(tensor_sample)

    def counted(batch_size: int) -> list[Any]:
        taken.release()
        return source(batch_size)

    with AsyncDataLoader(counted, 1) as loader:
        for _ in range(2):
            assert taken.acquire(timeout=30)
        assert not taken.acquire(timeout=0.2)
        next(loader)
        assert taken.acquire(timeout=30)
    assert source.calls == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_error_of_a_sample_is_raised_by_next(num_workers: int) -> None:
    with AsyncDataLoader(lambda n: [broken] * n, 2, num_workers=num_workers) as loader:
        for _ in range(2):
            with pytest.raises(ValueError, match="no sample here"):
                next(loader)


def test_process_that_ends_while_loading_raises_worker_crashed_error() -> None:
    loader = AsyncDataLoader(lambda n: [end_of_process] * n, 1, num_workers=1)
    with loader, pytest.raises(WorkerCrashedError, match="a process of num_workers ended"):
        next(loader)


def test_batches_that_are_ready_come_before_the_error() -> None:
    given: Iterator[list[Any]] = iter([[tensor_sample(0)], [tensor_sample(1)]])
    with AsyncDataLoader(lambda n: next(given, [broken]), 1) as loader:
        assert [next(loader)["index"].item() for _ in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="no sample here"):
            next(loader)


def test_close_wakes_a_waiting_next_and_ends_the_batches() -> None:
    blocked: threading.Event = threading.Event()
    found: list[Any] = []
    loader = AsyncDataLoader(lambda n: [blocked.wait(60)] * n, 1)
    waiting = threading.Thread(target=lambda: found.append(next(loader)))
    closing = threading.Thread(target=loader.close)

    waiting.start()
    closing.start()
    waiting.join(30)
    assert found == [None]

    blocked.set()
    closing.join(30)
    loader.close()
    assert next(loader) is None


def test_close_waits_until_the_source_returns() -> None:
    entered, returned = threading.Event(), threading.Event()

    def slow(batch_size: int) -> list[Any]:
        entered.set()
        time.sleep(0.03)
        returned.set()
        return [tensor_sample(0)]

    loader = AsyncDataLoader(slow, 1)
    assert entered.wait(30)
    loader.close()
    assert returned.is_set()
    assert "data-loader" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"num_workers": -1}, {"chunk_size": 3}, {"chunk_size": 0}],
)
def test_invalid_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        AsyncDataLoader(Source(tensor_sample), **{"batch_size": 4, **wrong})


@pytest.mark.parametrize("lock_type", LockContextType)
def test_lock_is_held_by_one_at_a_time(lock_type: LockContextType) -> None:
    lock, entered = LockContext(lock_type), threading.Event()
    with lock as held:
        assert held is lock

    def enter() -> None:
        with lock:
            entered.set()

    other = threading.Thread(target=enter)
    with lock:
        other.start()
        assert not entered.wait(0.1)
    assert entered.wait(30)
    other.join(30)
    lock.acquire()
    lock.release()


def test_only_a_process_lock_can_be_inherited_by_a_new_process() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):  # pickled only to start a process
        pickle.dumps(LockContext(LockContextType.PROCESS_LOCK))
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(LockContext(LockContextType.THREAD_LOCK))
