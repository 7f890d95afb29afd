"""Master and slaves behave the same over every transport."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport
from dingsdk_in_memory.transport import InMemoryTransport

from dingsdk.errors import (
    ClosedError,
    ConfigError,
    TaskFail,
    TaskFailedError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.worker.comm import Master, Slave, TaskAnswer, TaskStatus, Transport, WorkerInfo

MAKE: Mapping[str, Callable[[Path], Transport]] = {
    "greenlets": lambda path: InMemoryTransport(
        {"concurrency": "greenlets", "check_wire": True}, path
    ),
    "threads": lambda path: InMemoryTransport({"concurrency": "threads", "check_wire": True}, path),
    "flask_fs": lambda path: FlaskFSTransport({"threads": 8}, path),
}

PATIENCE_S = 20.0
"""A timeout for steps that take milliseconds on an idle machine."""


class Cluster:
    """A master and its slaves; it records what the master reports."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.joined: list[str] = []
        self.incarnations: list[tuple[str, int]] = []
        self.renewed: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.news = transport.scheduler.condition()
        self.master = Master(
            transport.master_end(),
            transport.scheduler,
            on_join=self._on_join,
            on_renew=lambda worker_id: self._note(self.renewed, worker_id),
            on_lost=lambda info, reason: self._note(self.lost, (info.worker_id, reason)),
        )
        self.address = self.master.start()
        self.slaves: list[Slave] = []

    def _on_join(self, info: WorkerInfo) -> None:
        self.incarnations.append((info.worker_id, info.incarnation))
        self._note(self.joined, info.worker_id)

    def _note(self, book: list[Any], entry: Any) -> None:
        with self.news:
            book.append(entry)
            self.news.notify_all()

    def expect(self, predicate: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(predicate, PATIENCE_S)

    def add(self, worker_id: str, **tasks: Callable[[Mapping[str, Any]], Any]) -> Slave:
        slave = Slave(
            self.transport,
            WorkerInfo(worker_id, "collector", {"cpu": 1}),
            callback_fn=tasks,
        )
        slave.start(self.address, timeout_s=5.0)
        self.slaves.append(slave)
        return slave

    def close(self) -> None:
        for slave in self.slaves:
            assert slave.close()
        self.master.close()


@pytest.fixture(params=MAKE)
def transport(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Transport]:
    monkeypatch.delenv("DINGSDK_SECRET", raising=False)
    monkeypatch.delenv("DINGSDK_SECRET_FILE", raising=False)
    made = MAKE[request.param](tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def cluster(transport: Transport) -> Iterator[Cluster]:
    made = Cluster(transport)
    yield made
    made.close()


def test_task_result_comes_back_and_callbacks_fire_once(cluster: Cluster) -> None:
    cluster.add("w0", double=lambda task: {"value": 2 * task["value"]})
    completed: list[Any] = []
    failed: list[Any] = []

    task = cluster.master.new_task("w0", {"name": "double", "value": 21})
    assert task.status is TaskStatus.IDLE
    assert task.result is None
    task.on_complete(lambda data, result: completed.append(result)).on_fail(
        lambda data, result: failed.append(result)
    )
    task.start().join(PATIENCE_S)

    assert task.status is TaskStatus.COMPLETED
    assert task.result == {"value": 42}
    assert completed == [{"value": 42}]
    assert failed == []
    with pytest.raises(ValueError, match="started before"):
        task.start()


@pytest.mark.parametrize(
    ("cause", "is_user_mistake"),
    [
        (ZeroDivisionError("on purpose"), False),
        (SystemExit("on purpose"), False),
        (ConfigError("on purpose", path="seed"), True),
    ],
)
def test_task_that_raises_fails_with_traceback_and_the_worker_continues(
    cluster: Cluster, cause: BaseException, is_user_mistake: bool
) -> None:
    def broken(task: Mapping[str, Any]) -> None:
        raise cause

    cluster.add("w0", broken=broken, fine=lambda task: None)
    with pytest.raises(TaskFailedError) as caught:
        cluster.master.ask("w0", {"name": "broken"}, 5.0)
    assert "in broken" in caught.value.traceback
    assert f"{type(cause).__name__}: on purpose" in str(caught.value)
    assert caught.value.result == {"is_user_mistake": is_user_mistake}
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {}


def test_task_fail_carries_its_result(cluster: Cluster) -> None:
    def refuse(task: Mapping[str, Any]) -> None:
        raise TaskFail({"message": "not today"}, "refused")

    cluster.add("w0", refuse=refuse)
    failed: list[Any] = []
    task = cluster.master.new_task("w0", {"name": "refuse"})
    task.on_fail(lambda data, result: failed.append(result)).start().join(PATIENCE_S)
    assert task.status is TaskStatus.FAILED
    assert failed == [{"message": "not today"}]


def test_unknown_task_name_fails(cluster: Cluster) -> None:
    cluster.add("w0")
    with pytest.raises(TaskFailedError) as caught:
        cluster.master.ask("w0", {"name": "nonsense"}, 5.0)
    assert caught.value.result == {"message": "task name error"}


def test_task_without_answer_times_out(cluster: Cluster) -> None:
    condition = cluster.transport.scheduler.condition()
    free: list[int] = []

    def hang(task: Mapping[str, Any]) -> None:
        with condition:
            condition.wait_for(lambda: bool(free), 5.0)

    cluster.add("w0", hang=hang)
    with pytest.raises(TaskTimeoutError) as caught:
        cluster.master.ask("w0", {"name": "hang"}, 0.1)
    assert caught.value.task == "hang"
    with condition:
        free.append(1)
        condition.notify_all()


def test_lost_worker_fails_its_task_and_is_reported_once(cluster: Cluster) -> None:
    condition = cluster.transport.scheduler.condition()
    free: list[int] = []

    def hang(task: Mapping[str, Any]) -> dict[str, Any]:
        with condition:
            condition.wait_for(lambda: bool(free), 5.0)
        return {"late": True}

    cluster.add("w0", hang=hang, fine=lambda task: {"ok": True})
    task = cluster.master.new_task("w0", {"name": "hang"}).start()
    cluster.transport.abandon_worker("w0")
    with pytest.raises(WorkerLostError):
        task.value(5.0)
    assert cluster.lost == [("w0", "abandoned")]
    with condition:
        free.append(1)
        condition.notify_all()
    # Its late answer is refused, and it joins again as a new incarnation.
    cluster.expect(lambda: cluster.joined == ["w0", "w0"])
    assert task.status is TaskStatus.FAILED
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {"ok": True}
    with pytest.raises(WorkerLostError):
        cluster.master.ask("w0", {"name": "fine"}, 5.0, incarnation=1)
    assert cluster.master.workers["w0"].incarnation == 2


def test_loss_of_an_old_incarnation_does_not_affect_the_new_one(cluster: Cluster) -> None:
    cluster.transport.slave_end(cluster.address).join(WorkerInfo("w0", "collector"), 5.0)
    cluster.add("w0", fine=lambda task: {"ok": True})
    assert [incarnation for _, incarnation in cluster.incarnations] == [1, 2]
    lost = list(cluster.lost)
    cluster.master.lose("w0", "its lease ended just when it came back", incarnation=1)
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {"ok": True}
    assert cluster.lost == lost
    cluster.master.lose("w0", "its lease ended", incarnation=2)
    assert cluster.lost == [*lost, ("w0", "its lease ended")]


def test_leaving_is_reported_before_the_same_worker_joins_again(transport: Transport) -> None:
    """If the report of leaving came last, it would be applied to the new incarnation."""
    heard: list[str] = []
    is_leaving = threading.Event()

    class Listener:
        def worker_joined(self, info: WorkerInfo) -> None:
            heard.append("joined")

        def worker_left(self, worker_id: str, reason: str) -> None:
            is_leaving.set()
            threading.Event().wait(0.2)
            heard.append("left")

        def worker_renewed(self, worker_id: str, progress: int) -> None: ...
        def task_answered(self, worker_id: str, answer: TaskAnswer) -> None: ...

    master = transport.master_end()
    address = master.open(Listener())
    first, second = transport.slave_end(address), transport.slave_end(address)
    first.join(WorkerInfo("w0", "collector"), 5.0)
    leaver = threading.Thread(target=first.close)
    leaver.start()
    assert is_leaving.wait(5.0)
    second.join(WorkerInfo("w0", "collector"), 5.0)
    leaver.join(PATIENCE_S)
    assert heard == ["joined", "left", "joined"]
    second.close()
    master.close()


def test_answer_of_an_unknown_task_is_logged_and_ignored(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add("a", echo=lambda task: {"n": task["n"]})
    cluster.master.task_answered("a", TaskAnswer("t99", completed=True))
    assert "worker a answered task 't99', not its own" in caplog.text
    assert cluster.master.ask("a", {"name": "echo", "n": 1}, 5.0) == {"n": 1}


def test_task_for_an_unknown_worker_is_refused(cluster: Cluster) -> None:
    task = cluster.master.new_task("nobody", {"name": "x"})
    with pytest.raises(WorkerLostError):
        task.start()
    assert task.status is TaskStatus.START_FAILED


def test_callback_added_after_the_end_is_called_at_once(cluster: Cluster) -> None:
    cluster.add("w0", count=lambda task: {"n": task["n"]})
    task = cluster.master.new_task("w0", {"name": "count", "n": 4}).start()
    task.join(PATIENCE_S)
    told: list[Any] = []
    task.on_fail(lambda data, result: told.append("failed"))
    task.on_complete(lambda data, result: told.append((data["n"], result["n"])))
    assert told == [(4, 4)]


def test_result_that_cannot_be_sent_fails_its_task_and_the_worker_continues(
    cluster: Cluster,
) -> None:
    cluster.add("w0", bad=lambda task: {"function": print}, fine=lambda task: None)
    with pytest.raises(TaskFailedError, match="cannot be sent") as caught:
        cluster.master.ask("w0", {"name": "bad"}, 5.0)
    assert "Traceback" not in str(caught.value)
    assert caught.value.traceback.startswith("Traceback")
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {}


def check_for(seconds: float, slave: Slave) -> None:
    """Let a slave's end check repeatedly that its master is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        slave._joined().check()
        time.sleep(0.02)


def test_busy_worker_ends_after_its_task_when_the_master_closes(cluster: Cluster) -> None:
    is_busy, go_on = threading.Event(), threading.Event()
    slave = cluster.add("w0", work=lambda task: (is_busy.set(), go_on.wait(20.0), None)[2])
    task = cluster.master.new_task("w0", {"name": "work"}).start()
    assert is_busy.wait(5.0)
    started = time.monotonic()
    cluster.master.close()
    assert time.monotonic() - started < 5.0
    with pytest.raises(WorkerLostError):
        task.value(5.0)
    with pytest.raises(ClosedError):
        check_for(5.0, slave)
    go_on.set()
    # The slave searches for no other master, because this one said that the run is over.
    assert slave._serving is not None
    assert slave._serving.join(2.0)
    assert slave.failure is None


def test_second_worker_with_the_same_id_replaces_the_first(cluster: Cluster) -> None:
    first = cluster.add("w0")
    cluster.add("w0", fine=lambda task: {"ok": True})
    assert first._serving is not None
    assert first._serving.join(PATIENCE_S)
    assert isinstance(first.failure, WorkerLostError)
    assert first.failure.replaced
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {"ok": True}
    assert [incarnation for _, incarnation in cluster.incarnations] == [1, 2]


@pytest.mark.parametrize("lease_s", [6.5, None])
def test_worker_gets_the_lease_time_when_it_joins(
    transport: Transport, lease_s: float | None
) -> None:
    master = Master(
        transport.master_end(),
        transport.scheduler,
        lease_s=float("inf") if lease_s is None else lease_s,
    )
    end = transport.slave_end(master.start())
    end.join(WorkerInfo("w0", "collector"), 5.0)
    assert end.lease_s == lease_s
    end.close()
    master.close()


def test_time_that_is_not_a_number_is_refused_instead_of_waiting_forever(
    cluster: Cluster,
) -> None:
    end = cluster.transport.slave_end(cluster.address)
    try:
        with pytest.raises(ConfigError, match="timeout_s is nan"):
            end.join(WorkerInfo("w0", "collector", {}), math.nan)
        end.join(WorkerInfo("w0", "collector", {}), PATIENCE_S)
        with pytest.raises(ConfigError, match="timeout_s is nan"):
            end.next_task(math.nan)
        task = cluster.master.new_task("w0", {"name": "any"})
        with pytest.raises(ConfigError, match="timeout_s is nan"):
            task.join(math.nan)
    finally:
        end.close()
