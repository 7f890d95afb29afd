"""Jobs that run as threads: how they end, and how close names those that do not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.worker.comm import ThreadScheduler

PATIENCE_S = 20.0


def test_job_is_done_after_its_end_and_keeps_its_exception() -> None:
    scheduler, go_on = ThreadScheduler(), threading.Event()

    def fail() -> None:
        go_on.wait(PATIENCE_S)
        raise ValueError("on purpose")

    job = scheduler.spawn(fail, "fails")
    assert (job.name, job.done, job.error) == ("fails", False, None)
    assert not job.join(0.01)
    go_on.set()
    assert job.join(PATIENCE_S)
    assert job.done
    assert str(job.error) == "on purpose"
    assert scheduler.close() == []


def test_close_names_running_jobs_and_forgets_ended_ones() -> None:
    scheduler, over = ThreadScheduler(), threading.Event()
    quick = scheduler.spawn(lambda: None, "quick")
    assert quick.join(PATIENCE_S)
    slow = [scheduler.spawn(lambda: over.wait(PATIENCE_S) and None, name) for name in ("a", "b")]
    assert scheduler._jobs == slow
    assert scheduler.stalled_job(0.0) is None
    assert scheduler.close(0.0) == ["a", "b"]
    over.set()
    assert scheduler.close(PATIENCE_S) == []


def test_close_waits_for_all_jobs_within_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, waited = [100.0], list[float]()
    scheduler = ThreadScheduler()

    def join(timeout_s: float) -> bool:
        waited.append(timeout_s)
        now[0] += 4.0
        return True

    job: Any = SimpleNamespace(name="job", join=join)
    monkeypatch.setattr(
        "dingsdk.worker.comm.scheduler.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    scheduler._jobs = [job] * 3
    assert scheduler.close() == []
    assert waited == [5.0, 1.0, 0.0]
