"""Jobs of the greenlet scheduler behave like threads, and end when it closes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from dingsdk_in_memory import greenlets
from dingsdk_in_memory.greenlets import GreenletScheduler

from dingsdk.errors import ClosedError
from dingsdk.worker.comm.scheduler import Job


@pytest.fixture
def scheduler() -> Iterator[GreenletScheduler]:
    made = GreenletScheduler()
    yield made
    made.close()


def test_jobs_that_yield_alternate_on_one_thread(scheduler: GreenletScheduler) -> None:
    seen: list[str] = []
    threads: set[int] = set()
    may_start = scheduler.condition()
    started = []

    def job(name: str) -> None:
        with may_start:
            started.append(name)
            may_start.notify_all()
            may_start.wait_for(lambda: len(started) == 2, 5.0)
        for _ in range(3):
            seen.append(name)
            threads.add(threading.get_ident())
            scheduler.yield_turn()

    jobs = [scheduler.spawn(lambda name=name: job(name), name) for name in "ab"]

    assert all(each.join(5.0) for each in jobs)
    assert sorted(seen) == list("aaabbb")
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_sleep_of_the_thread_ends_with_a_notice_and_with_the_first_deadline(
    scheduler: GreenletScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greenlets, "IDLE_S", 60.0)
    condition, waiting = scheduler.condition(), threading.Event()
    flags: list[int] = []

    def job(timeout_s: float) -> None:
        with condition:
            waiting.set()
            condition.wait_for(lambda: bool(flags), timeout_s)

    long = scheduler.spawn(lambda: job(1000.0), "long")
    short = scheduler.spawn(lambda: job(0.05), "short")
    assert short.join(20.0)
    assert waiting.wait(20.0)
    assert not long.done
    with condition:
        flags.append(1)
        condition.notify_all()
    assert long.join(20.0)


def test_thread_is_woken_only_when_its_predicate_holds(scheduler: GreenletScheduler) -> None:
    condition, flags = scheduler.condition(), [False]
    asked_in: list[int] = []

    def holds() -> bool:
        asked_in.append(threading.get_ident())
        return flags[0]

    def job() -> None:
        for flags[0] in (False, False, False, True):
            with condition:
                condition.notify_all()

    with condition:
        scheduler.spawn(job, "job")
        assert condition.wait_for(holds, 20.0)
    assert len(asked_in) == 6
    assert asked_in.count(threading.get_ident()) == 2  # before it waits, and when it is woken


def test_error_of_a_predicate_is_raised_in_the_thread_that_waits(
    scheduler: GreenletScheduler,
) -> None:
    condition, errors = scheduler.condition(), [None, ClosedError("over", what="it")]

    def holds() -> bool:
        if errors[0] is not None:
            raise errors[0]
        return False

    def job() -> None:
        with condition:
            errors.pop(0)
            condition.notify_all()

    with condition:
        notifies = scheduler.spawn(job, "job")
        with pytest.raises(ClosedError, match="over"):
            condition.wait_for(holds, 20.0)
    assert notifies.join(5.0)
    assert notifies.error is None


def test_yield_outside_of_a_job_does_nothing(scheduler: GreenletScheduler) -> None:
    assert scheduler.spawn(lambda: None, "first").join(5.0)
    scheduler.yield_turn()
    assert not scheduler.is_here


def spawn_waiting(scheduler: GreenletScheduler, name: str, seconds: float) -> Job:
    """Spawn a job that waits for a condition that never becomes true."""
    condition = scheduler.condition()

    def job() -> None:
        with condition:
            condition.wait_for(lambda: False, seconds)

    return scheduler.spawn(job, name)


def test_close_names_waiting_jobs_and_wakes_them_with_closed_error() -> None:
    scheduler = GreenletScheduler()
    stuck = spawn_waiting(scheduler, "forever", 1000.0)
    started = time.monotonic()

    assert scheduler.close(0.2) == ["forever"]
    assert time.monotonic() - started < 3.0
    assert stuck.done
    assert isinstance(stuck.error, ClosedError)
    with pytest.raises(ClosedError):
        spawn_waiting(scheduler, "late", 1000.0)


def test_close_waits_for_jobs_that_end_in_time() -> None:
    scheduler = GreenletScheduler()
    soon = spawn_waiting(scheduler, "soon", 0.2)

    assert scheduler.close(20.0) == []
    assert (soon.done, soon.error) == (True, None)


def test_close_ends_a_job_that_has_not_run_yet() -> None:
    scheduler, is_busy, go_on = GreenletScheduler(), threading.Event(), threading.Event()
    ran: list[str] = []

    def keep_busy() -> None:
        is_busy.set()
        go_on.wait(20.0)

    scheduler.spawn(keep_busy, "busy")
    assert is_busy.wait(20.0)
    late = scheduler.spawn(lambda: ran.append("late"), "late")
    assert scheduler.close(0.0) == ["busy", "late"]
    go_on.set()
    assert late.join(20.0)
    assert isinstance(late.error, ClosedError)
    assert ran == []
    assert scheduler._thread is not None
    scheduler._thread.join(20.0)


def test_stalled_job_is_named_with_its_innermost_frames(scheduler: GreenletScheduler) -> None:
    hang = threading.Event()
    job = scheduler.spawn(lambda: hang.wait(10.0) and None, "hangs")
    deadline = time.monotonic() + 5.0
    while (stalled := scheduler.stalled_job(0.05)) is None and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    hang.set()

    assert stalled is not None
    assert stalled.startswith("hangs")
    assert stalled.count("File ") == 3  # only the innermost frames
    assert "wait" in stalled
    assert job.join(5.0)
    assert scheduler.stalled_job(0.05) is None
