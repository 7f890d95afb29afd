"""The places where workers run, and the main function of a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dingsdk.errors import ConfigError, TaskTimeoutError, WorkerLostError
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.worker import (
    STALL_LIMIT_S,
    ThreadWorkers,
    run_worker,
)
from dingsdk.worker.comm import Place, Transport


class Anywhere(Transport):
    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")


class Undeclared(Transport):
    pass


@pytest.mark.parametrize(
    ("transport", "workers", "is_elsewhere", "place"),
    [
        (Anywhere, None, False, "processes"),
        (Anywhere, "", False, "processes"),
        (Anywhere, "threads", False, "threads"),
        (Anywhere, "threads", True, "processes"),  # the user starts them
        (Undeclared, None, False, "threads"),
    ],
)
def test_workers_run_in_the_first_place_of_the_transport_or_as_the_config_says(
    transport: type[Transport], workers: str | None, is_elsewhere: bool, place: str
) -> None:
    section = {"type": "mine", "workers": workers}
    assert transport.place_of(section, is_elsewhere=is_elsewhere) == place


@pytest.mark.parametrize(
    ("workers", "is_elsewhere", "path"),
    [("processes", False, "workers"), ("fibres", False, "workers"), ("threads", True, "type")],
)
def test_place_that_the_transport_does_not_support_is_refused(
    workers: str, is_elsewhere: bool, path: str
) -> None:
    section = {"type": "mine", "workers": workers}
    with pytest.raises(ConfigError, match="'mine' runs workers as threads") as caught:
        Undeclared.place_of(section, is_elsewhere=is_elsewhere)

    assert caught.value.path == f"system.transport.{path}"


class EndedWorker:
    """A worker whose run is over at once."""

    rejoin_s, is_over, tasks_done = 0.0, True, 0

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.begun: list[tuple[str, float]] = []
        self.is_closed = False

    def start(self, address: str) -> None:
        self.begun.append((address, self.rejoin_s))

    def close(self) -> None:
        self.is_closed = True


def run_collector(
    worker: Any,
    folder: Path,
    stop: threading.Event,
    on_joined: Callable[[], None] | None = None,
    *,
    memory_limit: int | None = None,
    resumes: bool = False,
    torch_threads: int = 1,
) -> bool:
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory", ["system.rejoin_s=12.5"], 0)
    cfg.system.worker_memory_limit = memory_limit
    cfg.system.torch_threads = torch_threads
    role = SimpleNamespace(create_worker=lambda transport, worker_id: worker, resumes=resumes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dingsdk.pipeline.worker.create_role", lambda name, cfg: role)
        return run_worker("collector", cfg, "memory", "c0", folder, stop, on_joined)


def test_failure_of_a_worker_is_raised_unless_it_was_stopped(tmp_path: Path) -> None:
    worker = EndedWorker(WorkerLostError("the coordinator gave the worker up"))

    with pytest.raises(WorkerLostError, match="gave the worker up"):
        run_collector(worker, tmp_path, threading.Event())
    assert worker.is_closed
    assert worker.begun == [("memory", 12.5)]

    stop = threading.Event()
    assert not run_collector(worker, tmp_path, stop, stop.set)


class WorkerOfTasks(EndedWorker):
    """A worker whose run is over after ``is_over`` was read five times."""

    def __init__(self, tasks_done: int, has_job: bool) -> None:
        super().__init__()
        self.tasks_done = tasks_done
        self.has_job = has_job
        self.looks = 0

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        self.looks += 1
        return self.looks > 5


@pytest.mark.parametrize(
    ("limit", "tasks_done", "has_job", "resumes", "least_work_s", "leaves"),
    [
        pytest.param(1, 1, False, False, 1000.0, True, id="between two tasks"),
        pytest.param(None, 1, False, False, 1000.0, False, id="without a limit"),
        pytest.param(1 << 60, 1, False, False, 1000.0, False, id="below the limit"),
        pytest.param(1, 0, False, False, 0.0, False, id="before its first task"),
        pytest.param(1, 1, True, False, 0.0, False, id="in a task that would begin again"),
        pytest.param(1, 1, True, True, 0.0, True, id="in a task that goes on elsewhere"),
        pytest.param(1, 1, True, True, 1000.0, False, id="in such a task, after a short time"),
    ],
)
def test_worker_over_its_memory_limit_leaves_if_no_work_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    tasks_done: int,
    has_job: bool,
    resumes: bool,
    least_work_s: float,
    leaves: bool,
) -> None:
    module = "dingsdk.pipeline.worker"
    monkeypatch.setattr("dingsdk.pipeline.worker.LOOK_S", 0.0)
    monkeypatch.setattr(f"{module}.POLL_S", 0.001)
    monkeypatch.setattr(f"{module}.LEAST_WORK_S", least_work_s)
    worker = WorkerOfTasks(tasks_done, has_job)

    is_again = run_collector(
        worker, tmp_path, threading.Event(), memory_limit=limit, resumes=resumes
    )

    assert (is_again, worker.is_closed) == (leaves, True)


def test_stopped_worker_does_not_wait_until_it_has_joined(tmp_path: Path) -> None:
    stop = threading.Event()
    ended = threading.Event()

    class Endless(EndedWorker):
        def start(self, address: str) -> None:
            stop.set()
            assert ended.wait(60)

        def close(self) -> None:
            super().close()
            ended.set()

    worker = Endless()
    joined: list[str] = []
    assert not run_collector(worker, tmp_path, stop, lambda: joined.append("c0"))
    assert (worker.is_closed, joined) == (True, [])


def test_close_does_not_wait_for_threads_behind_a_stalled_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = threading.Event()
    asked: list[float] = []

    def stalled_job(limit_s: float) -> str:
        asked.append(limit_s)
        return "a step of the env"

    transport: Any = SimpleNamespace(scheduler=SimpleNamespace(stalled_job=stalled_job))
    group = ThreadWorkers({}, transport)
    worker: Any = SimpleNamespace(close=lambda: ended.wait(60), failure=None)
    group._workers.append(worker)
    with pytest.raises(TaskTimeoutError, match="a step of the env") as caught:
        group.poll()
    assert caught.value.facts == {"task": "a step of the env", "timeout_s": STALL_LIMIT_S}

    group.close(60.0)

    ended.set()
    assert asked == [STALL_LIMIT_S, 60.0]
    assert "no other could save anything meanwhile: a step of the env" in caplog.text
    group.close(60.0)  # again
    assert len(asked) == 2


def test_failure_of_a_thread_ends_the_run_except_a_lost_worker() -> None:
    scheduler = SimpleNamespace(stalled_job=lambda limit_s: None)
    group = ThreadWorkers({}, SimpleNamespace(scheduler=scheduler))  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(close=lambda: None, failure=WorkerLostError("lost"))
    group._workers.append(worker)
    group.poll()
    worker.failure = ConfigError("wrong")
    with pytest.raises(ConfigError, match="wrong"):
        group.poll()
    group.close(60.0)
