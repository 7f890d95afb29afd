"""The pool hands out the longest idle worker of a role, and forgets lost ones."""

from __future__ import annotations

from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.coordinator.resources import WorkerPool


def test_take_gives_the_longest_idle_worker_of_the_role() -> None:
    pool = WorkerPool()
    for worker_id, role in (("c0", "collector"), ("l0", "learner"), ("c1", "collector")):
        pool.add(WorkerInfo(worker_id, role))
    first, second = pool.take("collector"), pool.take("collector")
    assert first is not None
    assert second is not None
    assert [first.worker_id, second.worker_id] == ["c0", "c1"]
    assert pool.take("collector") is None
    assert not pool.has_idle("collector")
    assert pool.has_idle("learner")
    pool.give_back(second)
    pool.give_back(first)
    third = pool.take("collector")
    assert third is not None
    assert third.worker_id == "c1"


def test_worker_lost_while_busy_does_not_come_back() -> None:
    pool = WorkerPool()
    pool.add(WorkerInfo("c0", "collector", incarnation=1))
    taken = pool.take("collector")
    assert taken is not None
    assert pool.remove(taken)
    pool.give_back(taken)
    assert pool.take("collector") is None
    assert pool.count("collector") == 0


def test_old_incarnation_cannot_free_the_new_one() -> None:
    pool = WorkerPool()
    pool.add(WorkerInfo("c0", "collector", incarnation=1))
    old = pool.take("collector")
    assert old is not None
    pool.remove(old)
    pool.add(WorkerInfo("c0", "collector", incarnation=2))
    assert pool.take("collector") is not None
    pool.give_back(old)
    assert not pool.has_idle("collector")


def test_loss_of_an_old_incarnation_spares_the_new_one() -> None:
    pool = WorkerPool()
    old = WorkerInfo("c0", "collector", incarnation=1)
    pool.add(old)
    pool.add(WorkerInfo("c0", "collector", incarnation=2))
    assert not pool.remove(old)
    assert pool.count("collector") == 1
    assert pool.has_idle("collector")
