"""Workers: their job, lease renewals, closing, rejoining, and the errors the master gets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import (
    ClosedError,
    TaskFail,
    TaskFailedError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.pipeline.worker import ThreadWorkers
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import (
    LEFT,
    CommWorker,
    Master,
    Slave,
    Task,
    TaskFunctions,
    ThreadScheduler,
    WorkerInfo,
)

PATIENCE_S = 20.0


def until(event: threading.Event) -> Callable[[], None]:
    """Return a job that waits for an event."""

    def run() -> None:
        event.wait(PATIENCE_S)

    return run


class ScriptedWorker(CommWorker):
    """A worker whose tasks are given functions."""

    role = "collector"

    def __init__(self, tasks: TaskFunctions, cfg: Any, *args: Any, **kwargs: Any) -> None:
        self._given = tasks
        super().__init__(cfg, *args, **kwargs)

    def _tasks(self) -> TaskFunctions:
        return self._given


class Bench:
    """A master, and workers whose tasks are functions of the test."""

    def __init__(self, tmp_path: Path, lease_s: float = 10.0) -> None:
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
            lease_s=lease_s,
        )
        self.address = self.master.start()
        self.workers: list[ScriptedWorker] = []

    def worker(
        self,
        cfg: Mapping[str, Any] | None = None,
        /,
        **tasks: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
    ) -> ScriptedWorker:
        made = ScriptedWorker(tasks, cfg or {}, self.transport, "w0")
        made._clock = lambda: self.now
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
    with closing(Bench(tmp_path)) as made:
        yield made


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


def test_task_that_waits_for_its_job_ends_with_the_master(bench: Bench) -> None:
    stop, is_waiting = threading.Event(), threading.Event()

    def report(task: Mapping[str, Any]) -> None:
        with worker.condition:
            is_waiting.set()
            worker.task_wait(lambda: False, PATIENCE_S)

    worker = bench.worker(report=report)
    worker.start_job(until(stop), stop.set, "job")
    bench.master.new_task("w0", {"name": "report"}).start()
    assert is_waiting.wait(PATIENCE_S)
    started = time.monotonic()
    bench.master.close()
    bench.wait(lambda: worker.is_over)
    assert time.monotonic() - started < 5.0
    assert worker.failure is None


def test_lease_is_renewed_every_third_of_its_length(bench: Bench) -> None:
    busy, counts = KeptBusy(bench, lambda worker: None), list[int]()
    busy.worker.renew()
    bench.renewed.clear()
    for after_s in (3.3, 3.4, 6.7, 6.8):
        bench.now = 1000.0 + after_s
        busy.worker.renew()
        counts.append(len(bench.renewed))
    busy.end()
    assert counts == [0, 1, 1, 2]


def test_answers_of_a_worker_with_a_hanging_job_do_not_renew_its_lease(bench: Bench) -> None:
    over = threading.Event()
    worker = bench.worker(report=lambda task: {"reports": []})
    worker.start_job(until(over), over.set, "job")
    bench.now += 61.0  # longer than progress_timeout_s
    bench.master.ask("w0", {"name": "report"}, PATIENCE_S)
    bench.renewed.clear()
    for _ in range(3):
        assert bench.master.ask("w0", {"name": "report"}, PATIENCE_S) == {"reports": []}
    assert bench.renewed == []

    over.set()


def test_job_pauses_before_the_end_of_a_lease_that_is_not_renewed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, is_reporting, may_answer = threading.Semaphore(0), threading.Event(), threading.Event()
    rounds: list[float] = []

    def run() -> None:
        while not worker.is_stopping:
            assert go_on.acquire(timeout=PATIENCE_S)
            worker.advance()
            rounds.append(bench.now)

    def report(task: Mapping[str, Any]) -> None:
        is_reporting.set()
        assert may_answer.wait(PATIENCE_S)

    worker = bench.worker(report=report)
    worker.start_job(run, go_on.release, "job")
    task = bench.master.new_task("w0", {"name": "report"}).start()
    assert is_reporting.wait(PATIENCE_S)
    bench.now += 8.0  # four fifths of the lease
    go_on.release()
    bench.wait(lambda: rounds == [1008.0])
    bench.now += 0.1
    go_on.release()

    bench.wait(lambda: "waits for the coordinator" in caplog.text)
    assert rounds == [1008.0]
    worker.renew()
    bench.wait(lambda: rounds == [1008.0, bench.now])
    may_answer.set()
    task.value(PATIENCE_S)


def test_master_loses_only_known_workers_and_none_by_its_close() -> None:
    dropped, closed, lost = list[Any](), list[float](), list[tuple[str, str]]()
    end: Any = SimpleNamespace(drop=lambda *given: dropped.append(given), close=closed.append)
    master = Master(
        end,
        ThreadScheduler(),
        on_lost=lambda info, reason: lost.append((info.worker_id, reason)),
    )
    for number, name in enumerate(("w0", "w1"), start=1):
        master.worker_joined(WorkerInfo(name, "collector", {}, number))
    master.lose("nobody", "silent")
    master.lose("w0", "silent", incarnation=2)
    assert (dropped, lost) == ([], [])
    master.lose("w0", "silent", incarnation=1)
    assert (dropped, lost) == ([("w0", 1, "silent")], [("w0", "silent")])
    for worker_id, reason in (("w0", "silent"), ("nobody", "it never joined")):
        with pytest.raises(WorkerLostError, match=reason) as caught:
            master.ask(worker_id, {"name": "work"}, PATIENCE_S)
        assert (caught.value.facts["worker_id"], caught.value.reason) == (worker_id, reason)
    master.close()
    assert (closed, lost, master.workers) == ([5.0], [("w0", "silent")], {})


def test_end_of_the_job_wakes_the_task_that_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.worker.POLL_S", 60.0)
    go_on = threading.Event()
    waited_s: list[float] = []

    def wait(task: Mapping[str, Any]) -> None:
        began = time.monotonic()
        timer = threading.Timer(0.05, go_on.set)
        timer.start()
        with worker.condition:
            worker.task_wait(lambda: False, PATIENCE_S)
        waited_s.append(time.monotonic() - began)
        timer.join()

    worker = bench.worker(wait=wait)
    worker.start_job(until(go_on), go_on.set, "job")
    bench.master.ask("w0", {"name": "wait"}, PATIENCE_S)
    assert waited_s[0] < 2.5  # without the wake-up it checks after a third of the lease


def test_job_that_starts_long_after_the_last_renewal_does_not_wait(bench: Bench) -> None:
    has_moved = threading.Event()

    def run() -> None:
        worker.advance()
        has_moved.set()

    def start(task: Mapping[str, Any]) -> Mapping[str, Any]:
        bench.now += 60.0  # the task took long and did not renew
        worker.start_job(run, lambda: None, "job")
        return {"has_moved": has_moved.wait(PATIENCE_S)}

    worker = bench.worker(start=start)
    assert bench.master.ask("w0", {"name": "start"}, PATIENCE_S) == {"has_moved": True}


def renews(bench: Bench, worker: CommWorker, after_s: float) -> bool:
    """Advance the clock, and return whether the worker renews its lease then."""
    bench.now += after_s
    bench.renewed.clear()
    worker.renew()
    return bool(bench.renewed)


class KeptBusy:
    """A worker whose serving thread is busy with a task, so that only the test renews."""

    def __init__(self, bench: Bench, job: Callable[[CommWorker], None], **cfg: Any) -> None:
        self.is_busy, self.go_on, self.stop = (threading.Event() for _ in range(3))
        self._bench = bench
        self.worker = bench.worker(cfg, start=self._start, wait=self._wait)
        self._job = job
        bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
        self._task = bench.master.new_task("w0", {"name": "wait"}).start()
        assert self.is_busy.wait(PATIENCE_S)

    def _start(self, task: Mapping[str, Any]) -> None:
        self.worker.start_job(lambda: self._job(self.worker), self.stop.set, "job")

    def _wait(self, task: Mapping[str, Any]) -> None:
        self.is_busy.set()
        self.go_on.wait(PATIENCE_S)

    def end(self) -> None:
        self.stop.set()
        self.go_on.set()
        self._task.join(PATIENCE_S)


@pytest.mark.parametrize("timeout_s", [8.0, 120.0])
def test_job_without_progress_keeps_the_lease_for_its_timeout(
    bench: Bench, timeout_s: float
) -> None:
    over = threading.Event()
    busy = KeptBusy(bench, lambda worker: until(over)(), progress_timeout_s=timeout_s)
    assert renews(bench, busy.worker, timeout_s - 4.0)
    assert not renews(bench, busy.worker, 4.0)
    busy.worker._moved_at = bench.now  # the job makes progress
    assert renews(bench, busy.worker, 4.0)
    over.set()
    busy.end()


@pytest.mark.parametrize("how", ["job_wait", "pause"])
def test_waiting_job_keeps_the_lease_for_any_time(bench: Bench, how: str) -> None:
    def run(worker: CommWorker) -> None:
        if how == "job_wait":
            with worker.condition:
                worker.job_wait(lambda: False)
        else:
            worker.pause(PATIENCE_S)

    busy = KeptBusy(bench, run)
    bench.wait(lambda: busy.worker._waiting == 1)
    assert renews(bench, busy.worker, 1000.0)
    assert renews(bench, busy.worker, 1000.0)
    assert busy.worker.stop_job()
    busy.end()


@pytest.mark.parametrize("how", ["job_wait", "pause"])
def test_job_that_hangs_after_a_wait_of_any_time_loses_the_lease(bench: Bench, how: str) -> None:
    is_over, has_waited, may_end = (threading.Event() for _ in range(3))

    def run(worker: CommWorker) -> None:
        if how == "job_wait":
            with worker.condition:
                worker.job_wait(is_over.is_set)
        else:
            worker.pause(0.001)
        has_waited.set()
        may_end.wait(PATIENCE_S)

    busy = KeptBusy(bench, run)
    if how == "job_wait":
        bench.wait(lambda: busy.worker._waiting == 1)
        assert renews(bench, busy.worker, 1000.0)
        is_over.set()
        with busy.worker.condition:
            busy.worker.condition.notify_all()
    assert has_waited.wait(PATIENCE_S)
    assert renews(bench, busy.worker, 59.0)
    assert not renews(bench, busy.worker, 4.0)
    may_end.set()
    busy.end()


def test_job_wait_calls_a_function_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.worker.ANSWER_WITHIN_S", 0.01)
    worker, called = bench.worker(), threading.Event()
    found: list[bool] = []

    def run() -> None:
        with worker.condition:
            found.append(worker.job_wait(called.is_set, called.set))

    worker.start_job(run, lambda: None, "job")
    bench.wait(lambda: worker.job_ended)
    assert found == [True]


def test_worker_without_a_job_or_with_an_ended_job_keeps_the_lease(bench: Bench) -> None:
    busy = KeptBusy(bench, lambda worker: None)
    bench.wait(lambda: busy.worker.job_ended)
    assert renews(bench, busy.worker, 1000.0)
    busy.worker.stop_job()
    assert renews(bench, busy.worker, 1000.0)
    busy.end()


def test_lease_is_renewed_while_a_task_builds_its_job(tmp_path: Path) -> None:
    def build(task: Mapping[str, Any]) -> None:
        with worker.building({}):
            for _ in range(3):
                bench.renewed.clear()
                bench.now += 0.2  # a third of the lease
                bench.wait(lambda: bool(bench.renewed))

    with closing(Bench(tmp_path, lease_s=0.6)) as bench:
        worker = bench.worker(build=build)
        bench.master.ask("w0", {"name": "build"}, PATIENCE_S)


def test_error_of_a_job_fails_the_tasks_that_check_it_but_not_the_next_job(
    bench: Bench,
) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    jobs = iter([fail, lambda: None])

    def report(task: Mapping[str, Any]) -> Mapping[str, Any]:
        bench.wait(lambda: worker.job_ended)
        worker.raise_job_error()
        return {"fine": True}

    worker = bench.worker(
        start=lambda task: worker.start_job(next(jobs), lambda: None, "job"),
        report=report,
        end=lambda task: {"ended": worker.stop_job()},
    )
    for outcome in ("on purpose", None):
        bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
        if outcome:
            with pytest.raises(TaskFailedError, match=outcome):
                bench.master.ask("w0", {"name": "report"}, PATIENCE_S)
        else:
            assert bench.master.ask("w0", {"name": "report"}, PATIENCE_S) == {"fine": True}
        assert bench.master.ask("w0", {"name": "end"}, PATIENCE_S) == {"ended": True}


def test_closed_connection_of_a_stopping_job_is_not_an_error(bench: Bench) -> None:
    go_on = threading.Event()

    def run() -> None:
        go_on.wait(PATIENCE_S)
        raise ClosedError("closed meanwhile", what="store")

    def end(task: Mapping[str, Any]) -> Mapping[str, Any]:
        worker.stop_job()
        worker.raise_job_error()
        return {"fine": True}

    worker = bench.worker(start=lambda task: worker.start_job(run, go_on.set, "job"), end=end)
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    # Set before the job can raise, so that its error comes after the stop.
    worker.is_stopping = True
    assert bench.master.ask("w0", {"name": "end"}, PATIENCE_S) == {"fine": True}


def test_worker_runs_one_job_at_a_time(bench: Bench) -> None:
    over = threading.Event()

    def start(task: Mapping[str, Any]) -> None:
        with worker.building(task):
            pass
        worker.start_job(until(over), over.set, "the first")

    worker = bench.worker(start=start)
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    with pytest.raises(TaskFailedError, match="w0 runs the first") as caught:
        bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    assert caught.value.result == {"message": "busy"}
    assert worker.stop_job()
    assert worker.stop_job()
    over.clear()
    bench.master.ask("w0", {"name": "start"}, PATIENCE_S)
    over.set()


def test_job_that_ignores_the_stop_stays_the_job_of_the_worker(bench: Bench) -> None:
    over, worker = threading.Event(), bench.worker()
    worker.start_job(until(over), lambda: None, "stubborn")
    assert not worker.stop_job(0.05)
    assert worker.has_job
    over.set()
    assert worker.stop_job()
    assert not worker.has_job


@pytest.mark.parametrize(("has_cuda", "gpus"), [(False, 0), (True, 3)])
def test_worker_reports_the_cpus_and_gpus_of_its_host(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, has_cuda: bool, gpus: int
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    worker = bench.worker(resource=lambda task: worker.deal_with_resource())
    found = bench.master.ask("w0", {"name": "resource"}, PATIENCE_S)
    assert found == bench.joined[0].resource == {"cpu": os.cpu_count(), "gpu": gpus}


class StoppedCondition(threading.Condition):
    """A condition of a process that is stopped for two minutes in its first wait."""

    now, waits = 0.0, 0

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits += 1
        self.now += timeout + (120.0 if self.waits == 1 else 0.0)
        return predicate()


def test_wait_for_an_answer_begins_again_if_the_process_was_stopped() -> None:
    condition = StoppedCondition()
    task = Task("t1", "w0", {}, lambda task: None, condition, lambda: condition.now).start()

    with pytest.raises(TaskTimeoutError):
        task.join(60.0)

    assert (condition.waits, condition.now) == (2, 240.0)


def test_worker_whose_transport_raises_ends_the_run_with_that_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(answer: object) -> None:
        raise RuntimeError("the wire is cut")

    worker = bench.worker(ask=lambda task: {})
    group = ThreadWorkers({}, bench.transport)
    group._workers.append(worker)
    group.poll()
    monkeypatch.setattr(worker._joined(), "answer", refuse)
    with pytest.raises(TaskTimeoutError):
        bench.master.ask("w0", {"name": "ask"}, 1.0)
    assert worker.is_over

    with pytest.raises(RuntimeError, match="the wire is cut"):
        group.poll()


def test_task_that_raises_worker_lost_error_makes_the_worker_rejoin(bench: Bench) -> None:
    def lose(task: Mapping[str, Any]) -> None:
        raise WorkerLostError("the work of before hangs", worker_id="w0")

    worker = bench.worker(lose=lose, fine=lambda task: {})
    with pytest.raises(WorkerLostError):
        bench.master.ask("w0", {"name": "lose"}, PATIENCE_S)
    bench.wait(lambda: len(bench.joined) == 2)
    assert bench.master.ask("w0", {"name": "fine"}, PATIENCE_S) == {}
    assert (worker.tasks_done, worker.failure) == (1, None)


@pytest.mark.parametrize(
    ("facts", "joins"), [({"replaced": True}, 0), ({}, 1), ({"silent": True}, 1)]
)
def test_worker_that_cannot_rejoin_stops_serving(
    bench: Bench, facts: dict[str, bool], joins: int
) -> None:
    slave = Slave(bench.transport, WorkerInfo("w1", "collector", {}))
    called: list[str] = []

    def fail(*given: Any) -> None:
        called.append("join" if len(given) == 2 else "ask")
        if len(called) > 4:
            raise ClosedError("enough", what="slave end")
        raise WorkerLostError(f"number {len(called)}", worker_id="w1", **facts)

    end: Any = SimpleNamespace(lease_s=9.0, join=fail, next_task=fail)
    slave._end, slave._is_closed = end, False
    slave._serve()
    assert called == ["ask", *["join"] * joins]
    assert str(slave.failure) == f"number {1 + joins}"


@pytest.mark.parametrize(
    ("facts", "is_kept"), [({"silent": True}, True), ({"restarted": True}, True), ({}, False)]
)
def test_job_is_kept_if_the_master_was_silent_or_restarted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool], is_kept: bool
) -> None:
    over, worker, joined = threading.Event(), bench.worker(), list[Any]()
    task = {"task_id": "t1", "payload_prefix": "p"}
    worker._task_info = task
    worker.start_job(until(over), over.set, "job")
    with monkeypatch.context() as patch:
        patch.setattr(worker._joined(), "join", lambda *given: joined.append(given))
        assert worker._join_again(WorkerLostError("gone", **facts))
    ((info, timeout_s),) = joined
    named = task if is_kept else {**task, "is_over": True}
    assert info.resource == {**worker.info.resource, "task": named}
    assert (info.worker_id, timeout_s) == ("w0", 60.0)
    assert worker.has_job is is_kept
    over.set()


@pytest.mark.parametrize("how", ["stop", "go_on"])
def test_kept_job_is_no_longer_kept_after_it_is_stopped_or_continued(
    bench: Bench, how: str
) -> None:
    over, worker = threading.Event(), bench.worker()
    worker._task_info = {"task_id": "t1", "payload_prefix": "p"}
    worker.start_job(until(over), over.set, "the first")
    assert worker._kept_task() == {"task_id": "t1", "payload_prefix": "p"}
    if how == "stop":
        worker.stop_job()
        over.clear()
        worker.start_job(until(over), over.set, "the second")
    else:
        worker.go_on_with_job("t1")
    with pytest.raises(TaskFail, match="w0 runs the"), worker.building({}):
        raise AssertionError("it is busy")
    assert worker.has_job


def test_ended_or_stopping_job_is_not_kept(bench: Bench) -> None:
    over, worker = threading.Event(), bench.worker()
    worker._task_info = {"task_id": "t1", "payload_prefix": "p"}
    assert worker._kept_task() is None
    worker.start_job(until(over), lambda: None, "job")
    assert not worker.stop_job(0.01)
    assert worker._kept_task() is None
    over.set()
    assert worker.stop_job()
    worker.start_job(lambda: None, lambda: None, "job")
    bench.wait(lambda: worker.job_ended)
    assert worker._kept_task() is None


def test_only_a_job_of_the_same_task_can_be_continued(bench: Bench) -> None:
    over, worker = threading.Event(), bench.worker()
    worker._task_info = {"task_id": "t1", "payload_prefix": "p"}
    with pytest.raises(TaskFail, match="w0 has no t1"):
        worker.go_on_with_job("t1")
    worker.start_job(until(over), over.set, "the first")
    with pytest.raises(TaskFail, match="w0 has no t2"):
        worker.go_on_with_job("t2")
    worker.go_on_with_job("t1")
    worker.stop_job()
