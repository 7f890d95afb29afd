"""The pool hands out the longest idle worker of a role, and lists silent workers."""

from __future__ import annotations

import pytest

from dingsdk.worker.comm import WorkerInfo
from dingsdk.worker.coordinator.scheduler_state import WorkerPool

LEASE_S = 15.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> WorkerPool:
    return WorkerPool(LEASE_S, clock)


def silent(pool: WorkerPool) -> list[str]:
    return [info.worker_id for info in pool.silent()]


def test_take_gives_the_longest_idle_worker_of_the_role(pool: WorkerPool) -> None:
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
    assert pool.counts() == {"collector": 2, "learner": 1}


def test_worker_lost_while_busy_does_not_come_back(pool: WorkerPool) -> None:
    pool.add(WorkerInfo("c0", "collector", incarnation=1))
    taken = pool.take("collector")
    assert taken is not None
    assert pool.remove(taken)
    pool.give_back(taken)
    assert pool.take("collector") is None
    assert pool.counts()["collector"] == 0


def test_old_incarnation_cannot_free_the_new_one(pool: WorkerPool) -> None:
    pool.add(WorkerInfo("c0", "collector", incarnation=1))
    old = pool.take("collector")
    assert old is not None
    pool.remove(old)
    pool.add(WorkerInfo("c0", "collector", incarnation=2))
    assert pool.take("collector") is not None
    pool.give_back(old)
    assert not pool.has_idle("collector")


def test_loss_of_an_old_incarnation_keeps_the_new_one(pool: WorkerPool) -> None:
    old = WorkerInfo("c0", "collector", incarnation=1)
    pool.add(old)
    pool.add(WorkerInfo("c0", "collector", incarnation=2))
    assert not pool.remove(old)
    assert pool.counts()["collector"] == 1
    assert pool.has_idle("collector")


def test_worker_is_silent_after_its_lease_until_it_is_removed(
    pool: WorkerPool, clock: Clock
) -> None:
    info = WorkerInfo("c0", "collector")
    pool.add(info)
    clock.now += LEASE_S - 0.1
    assert silent(pool) == []
    clock.now += 0.1
    assert silent(pool) == ["c0"]
    assert pool.remove(info)
    assert silent(pool) == []
    assert not pool.renew("c0")


def test_renewed_lease_starts_at_the_renewal(pool: WorkerPool, clock: Clock) -> None:
    pool.add(WorkerInfo("c0", "collector"))
    clock.now += 10.0
    assert pool.renew("c0")
    clock.now += LEASE_S - 0.1
    assert silent(pool) == []
    clock.now += 0.1
    assert silent(pool) == ["c0"]
    assert not pool.renew("stranger")


def test_worker_that_joins_again_has_a_new_lease(pool: WorkerPool, clock: Clock) -> None:
    pool.add(WorkerInfo("c0", "collector", incarnation=1))
    clock.now += 10.0
    pool.add(WorkerInfo("c0", "collector", incarnation=2))
    clock.now += 10.0
    assert silent(pool) == []
