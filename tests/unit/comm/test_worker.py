"""A worker's one job, and what its master hears, whenever it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import TooManyTasksError, WorkerLostError
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import LEFT, CommWorker, Master, TaskFunctions, WorkerInfo
from dingsdk.worker.comm.slave import POLL_S

PATIENCE_S = 20.0


def until(event: threading.Event) -> Callable[[], None]:
    """Return a job that waits for an event."""

    def run() -> None:
        event.wait(PATIENCE_S)

    return run


class ScriptedWorker(CommWorker):
    """Serves the functions that it is given."""

    role = "collector"

    def __init__(self, tasks: TaskFunctions, *args: Any, **kwargs: Any) -> None:
        self._given = tasks
        super().__init__({}, *args, **kwargs)

    def _tasks(self) -> TaskFunctions:
        return self._given


class Bench:
    """A master, and one worker whose tasks are the test's functions."""

    def __init__(self, tmp_path: Path) -> None:
        cfg = {"type": "in_memory", "concurrency": "threads"}
        self.transport = default_manager().create("transports", cfg, tmp_path)
        self.joined: list[WorkerInfo] = []
        self.renewed: list[str] = []
        self.now = 1000.0
        self.master = Master(
            self.transport.master_end(),
            self.transport.scheduler,
            on_join=self.joined.append,
            on_renew=self.renewed.append,
            on_lost=lambda info, reason: None,
            lease_s=10.0,
            max_open_tasks=64,
        )
        self.address = self.master.start()
        self.workers: list[ScriptedWorker] = []

    def worker(
        self, **tasks: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
    ) -> ScriptedWorker:
        made = ScriptedWorker(tasks, self.transport, "w0", clock=lambda: self.now)
        made.start(self.address)
        self.workers.append(made)
        return made

    def wait(self, predicate: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
        while not predicate():
            assert time.monotonic() < deadline
            pause.wait(0.005)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.master.close()
        self.transport.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_job_that_a_task_starts_during_the_close_is_stopped_too(bench: Bench) -> None:
    is_building, go_on, stop = threading.Event(), threading.Event(), threading.Event()
    ended = threading.Event()

    def run() -> None:
        stop.wait(PATIENCE_S)
        ended.set()

    def start(task: Mapping[str, Any]) -> None:
        is_building.set()
        assert go_on.wait(PATIENCE_S)
        worker.start_job(run, stop.set, "job")

    worker = bench.worker(start=start)
    task = bench.master.new_task("w0", {"name": "start"}).start()
    assert is_building.wait(PATIENCE_S)
    closing = threading.Thread(target=worker.close)
    closing.start()
    with pytest.raises(WorkerLostError) as caught:
        task.value(PATIENCE_S)
    go_on.set()
    closing.join(PATIENCE_S)

    assert caught.value.reason == LEFT
    assert ended.is_set()
    assert not worker.has_job


def test_close_cuts_a_task_off_instead_of_answering_that_its_job_ended(bench: Bench) -> None:
    stop = threading.Event()

    def report(task: Mapping[str, Any]) -> Mapping[str, Any]:
        with worker.condition:
            worker.task_wait(lambda: False, PATIENCE_S)
        return {"has_ended": True}

    worker = bench.worker(
        start=lambda task: worker.start_job(until(stop), stop.set, "j"),
        report=report,
    )
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    task = bench.master.new_task("w0", {"name": "report"}).start()
    worker.close()

    with pytest.raises(WorkerLostError) as caught:
        task.value(PATIENCE_S)
    assert caught.value.reason == LEFT


def test_task_that_waits_for_its_job_ends_with_the_master(bench: Bench) -> None:
    stop, is_waiting = threading.Event(), threading.Event()

    def report(task: Mapping[str, Any]) -> None:
        with worker.condition:
            is_waiting.set()
            worker.task_wait(lambda: False, PATIENCE_S)

    worker = bench.worker(
        start=lambda task: worker.start_job(until(stop), stop.set, "j"),
        report=report,
    )
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    bench.master.new_task("w0", {"name": "report"}).start()
    assert is_waiting.wait(PATIENCE_S)
    started = time.monotonic()
    bench.master.close()
    bench.wait(lambda: worker.is_over)
    assert time.monotonic() - started < 5.0
    assert worker.failure is None


def test_lease_is_renewed_three_times_as_often_as_the_master_said(bench: Bench) -> None:
    is_busy, go_on = threading.Event(), threading.Event()
    worker = bench.worker(wait=lambda task: (is_busy.set(), go_on.wait(PATIENCE_S), None)[2])
    task = bench.master.new_task("w0", {"name": "wait"}).start()
    assert is_busy.wait(PATIENCE_S)  # the serving thread renews nothing now
    worker.renew()
    bench.renewed.clear()

    counts = []
    for after_s in (3.3, 3.4, 6.7, 6.8):
        bench.now = 1000.0 + after_s
        worker.renew()
        counts.append(len(bench.renewed))
    go_on.set()
    task.value(PATIENCE_S)

    assert counts == [0, 1, 1, 2]


def test_answers_of_a_worker_whose_job_hangs_are_no_sign_of_life(bench: Bench) -> None:
    over = threading.Event()
    worker = bench.worker(
        start=lambda task: worker.start_job(until(over), over.set, "j"),
        report=lambda task: {"reports": []},
    )
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    bench.now += 61.0  # longer than any step may take
    bench.master.ask("w0", {"name": "report"}, PATIENCE_S)
    bench.renewed.clear()
    for _ in range(3):
        assert bench.master.ask("w0", {"name": "report"}, PATIENCE_S) == {"reports": []}
    assert bench.renewed == []

    over.set()


def test_job_stops_before_a_lease_that_is_not_renewed_ends(bench: Bench) -> None:
    go_on, is_reporting = threading.Semaphore(0), threading.Event()
    rounds: list[float] = []

    def run() -> None:
        while True:
            assert go_on.acquire(timeout=PATIENCE_S)
            worker.advance()
            rounds.append(bench.now)

    def report(task: Mapping[str, Any]) -> None:
        is_reporting.set()
        bench.wait(lambda: worker.job_ended)
        worker.raise_job_error()

    worker = bench.worker(
        start=lambda task: worker.start_job(run, lambda: None, "job"),
        report=report,
    )
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    task = bench.master.new_task("w0", {"name": "report"}).start()
    assert is_reporting.wait(PATIENCE_S)
    bench.now += 7.9
    go_on.release()
    bench.wait(lambda: rounds == [1007.9])
    bench.now += 0.2
    go_on.release()

    with pytest.raises(WorkerLostError):
        task.value(PATIENCE_S)
    assert rounds == [1007.9]
    bench.wait(lambda: len(bench.joined) == 2)  # free for other tasks
    assert not worker.has_job


def test_worker_gets_no_more_tasks_than_it_may_leave_unanswered(bench: Bench) -> None:
    go_on = threading.Event()
    bench.worker(wait=lambda task: (go_on.wait(PATIENCE_S), None)[1])
    tasks = [bench.master.new_task("w0", {"name": "wait"}).start() for _ in range(64)]
    with pytest.raises(TooManyTasksError) as caught:
        bench.master.ask("w0", {"name": "wait"}, PATIENCE_S)
    assert (caught.value.worker_id, caught.value.limit) == ("w0", 64)

    go_on.set()
    for task in tasks:
        assert task.value(PATIENCE_S) == {}
    assert bench.master.ask("w0", {"name": "wait"}, PATIENCE_S) == {}


def test_end_of_the_job_wakes_the_task_that_waits_for_it(bench: Bench) -> None:
    go_on = threading.Event()
    waited_s: list[float] = []

    def run() -> None:
        go_on.wait(PATIENCE_S)

    def start(task: Mapping[str, Any]) -> None:
        worker.start_job(run, go_on.set, "job")

    def wait(task: Mapping[str, Any]) -> None:
        began = time.monotonic()
        timer = threading.Timer(0.05, go_on.set)
        timer.start()
        with worker.condition:
            worker.task_wait(lambda: False, PATIENCE_S)
        waited_s.append(time.monotonic() - began)
        timer.join()

    worker = bench.worker(start=start, wait=wait)
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    bench.master.ask("w0", {"name": "wait"}, PATIENCE_S)
    assert waited_s[0] < 0.75 * POLL_S  # after that it looks by itself
