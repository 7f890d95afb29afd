"""Master and slave over the in_memory transport, in turns and in threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_in_memory.transport import InMemoryTransport

from dingsdk import SampleBatch
from dingsdk.errors import (
    ConfigError,
    ConflictError,
    DataMissingError,
    ProtocolError,
    TaskFail,
    TaskFailedError,
    TaskTimeoutError,
    WorkerLostError,
)
from dingsdk.worker.comm import Master, Slave, TaskStatus, WorkerInfo


class Cluster:
    """A master and its slaves, with the master's reports written down."""

    def __init__(self, transport: InMemoryTransport) -> None:
        self.transport = transport
        self.joined: list[str] = []
        self.renewed: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.news = transport.scheduler.condition()
        self.master = Master(
            transport.master_end(),
            transport.scheduler,
            on_join=lambda info: self._note(self.joined, info.worker_id),
            on_renew=lambda worker_id: self._note(self.renewed, worker_id),
            on_lost=lambda worker_id, reason: self._note(self.lost, (worker_id, reason)),
        )
        self.address = self.master.start()
        self.slaves: list[Slave] = []

    def _note(self, book: list[Any], entry: Any) -> None:
        with self.news:
            book.append(entry)
            self.news.notify_all()

    def expect(self, predicate: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(predicate, 5.0)

    def add(self, worker_id: str, **tasks: Callable[[Mapping[str, Any]], Any]) -> Slave:
        slave = Slave(
            self.transport.slave_end(self.address),
            self.transport.scheduler,
            WorkerInfo(worker_id, "collector", {"cpu": 1}),
            callback_fn=tasks,
        )
        slave.start(timeout_s=5.0)
        self.slaves.append(slave)
        return slave

    def close(self) -> None:
        for slave in self.slaves:
            assert slave.close()
        self.master.close()


@pytest.fixture
def cluster(transport: InMemoryTransport) -> Any:
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
    task.start().join(5.0)

    assert task.status is TaskStatus.COMPLETED
    assert task.result == {"value": 42}
    assert completed == [{"value": 42}]
    assert failed == []
    with pytest.raises(ValueError, match="started before"):
        task.start()


def test_joined_worker_is_announced_with_its_resources(cluster: Cluster) -> None:
    cluster.add("w0")
    assert cluster.joined == ["w0"]
    assert cluster.master.workers["w0"].resource == {"cpu": 1}


def test_task_that_raises_fails_with_traceback_and_the_worker_serves_on(cluster: Cluster) -> None:
    def broken(task: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("on purpose")

    cluster.add("w0", broken=broken, fine=lambda task: None)
    with pytest.raises(TaskFailedError) as caught:
        cluster.master.ask("w0", {"name": "broken"}, 5.0)
    assert "in broken" in caught.value.traceback
    assert "ZeroDivisionError: on purpose" in str(caught.value)
    assert cluster.master.ask("w0", {"name": "fine"}, 5.0) == {}


def test_task_fail_carries_its_result(cluster: Cluster) -> None:
    def refuse(task: Mapping[str, Any]) -> None:
        raise TaskFail({"message": "not today"}, "refused")

    cluster.add("w0", refuse=refuse)
    failed: list[Any] = []
    task = cluster.master.new_task("w0", {"name": "refuse"})
    task.on_fail(lambda data, result: failed.append(result)).start().join(5.0)
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


def test_task_for_an_unknown_worker_is_refused(cluster: Cluster) -> None:
    task = cluster.master.new_task("nobody", {"name": "x"})
    with pytest.raises(WorkerLostError):
        task.start()
    assert task.status is TaskStatus.START_FAILED


def test_task_that_is_no_plain_data_is_refused(cluster: Cluster) -> None:
    cluster.add("w0")
    with pytest.raises(ProtocolError):
        cluster.master.ask("w0", {"name": "x", "function": print}, 5.0)


def test_two_workers_serve_side_by_side(cluster: Cluster) -> None:
    counts = {"w0": itertools.count(), "w1": itertools.count()}
    for name, counter in counts.items():
        cluster.add(name, count=lambda task, counter=counter: {"n": next(counter)})
    tasks = [cluster.master.new_task(name, {"name": "count"}).start() for name in ("w0", "w1") * 5]
    results = [(task.worker_id, task.value(5.0)["n"]) for task in tasks]
    assert sorted(results) == sorted((name, n) for name in counts for n in range(5))


def test_join_without_a_master_gives_up_at_its_deadline(transport: InMemoryTransport) -> None:
    end = transport.slave_end("memory")
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.join(WorkerInfo("w0", "collector"), timeout_s=0.1)
    assert time.monotonic() - started < 2.0


def test_foreign_address_is_refused(transport: InMemoryTransport) -> None:
    with pytest.raises(ConfigError, match="memory"):
        transport.slave_end("http://elsewhere:7235")


def test_unknown_concurrency_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"threads.*turns"):
        InMemoryTransport({"concurrency": "fibers"}, tmp_path)


def test_payload_crosses_by_reference_and_is_frozen(transport: InMemoryTransport) -> None:
    store = transport.data_store()
    batch = SampleBatch({"obs": np.zeros((3, 2), np.float32)})
    store.put("p1", batch)
    assert np.shares_memory(store.get("p1").columns["obs"], batch.columns["obs"])
    with pytest.raises(ValueError, match="read-only"):
        store.get("p1").columns["obs"][0] = 1.0
    store.delete(["p1", "unknown"])
    assert len(store) == 0
    with pytest.raises(DataMissingError) as caught:
        store.get("p1")
    assert caught.value.data_id == "p1"


def test_another_payload_under_a_used_id_is_refused(transport: InMemoryTransport) -> None:
    store = transport.data_store()
    for _ in range(3):
        store.put("p1", SampleBatch({"reward": np.array([1.0, np.nan])}))
    with pytest.raises(ConflictError) as caught:
        store.put("p1", SampleBatch({"reward": np.array([2.0, np.nan])}))
    assert caught.value.data_id == "p1"
    assert store.get("p1").columns["reward"][0] == 1.0


def test_policy_is_cloned_and_never_goes_back(transport: InMemoryTransport) -> None:
    store = transport.policy_store()
    weight = torch.ones(2)
    assert store.newest("p") is None
    store.publish("p", {"w": weight}, 5)
    weight.zero_()
    store.publish("p", {"w": weight}, 3)
    found = store.newest("p")
    assert found is not None
    assert found[0] == 5
    assert found[1]["w"].tolist() == [1.0, 1.0]
    assert store.newest("p", newer_than=5) is None
    store.discard("p")
    assert store.newest("p") is None


@pytest.mark.parametrize("lease_s", [6.5, None])
def test_worker_is_told_the_lease_when_it_joins(
    transport: InMemoryTransport, lease_s: float | None
) -> None:
    master = Master(
        transport.master_end(),
        transport.scheduler,
        on_join=lambda info: None,
        on_renew=lambda worker_id: None,
        on_lost=lambda worker_id, reason: None,
        lease_s=float("inf") if lease_s is None else lease_s,
    )
    end = transport.slave_end(master.start())
    end.join(WorkerInfo("w0", "collector"), 5.0)
    assert end.lease_s == lease_s
    end.close()
    master.close()
