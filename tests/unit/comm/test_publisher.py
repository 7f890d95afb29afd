"""Publishing policies to a full disk: the old version stays, and later ones are tried."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from dingsdk_in_memory.stores import MemoryPolicyStore

from dingsdk.errors import StorageFullError
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import CommWorker, TaskFunctions
from dingsdk.worker.comm.publisher import PolicyPublisher

MODEL = {"weight": torch.zeros(2)}


class NarrowStore(MemoryPolicyStore):
    """Refuses the next ``refusals`` policies."""

    refusals = 0

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StorageFullError("no room", path="policies", reason="ENOSPC")
        super().publish(policy_id, state, version)

    def version(self) -> int:
        found = self.newest("p")
        assert found is not None
        return found[0]


class IdleWorker(CommWorker):
    role = "learner"

    def _tasks(self) -> TaskFunctions:
        return {}

    def advance(self) -> None:
        """Do nothing: the worker has no master and no lease."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[CommWorker]:
    transport = default_manager().create("transports", {"type": "in_memory"}, tmp_path)
    transport._policy_store = NarrowStore()
    yield IdleWorker({}, transport, "w0")
    transport.close()


def test_outage_keeps_the_old_version_and_is_logged_once(
    worker: CommWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dingsdk.worker.comm")
    publisher, store = PolicyPublisher(worker, "p"), worker.policy_store
    assert isinstance(store, NarrowStore)
    assert publisher.publish(MODEL, 1)
    store.refusals = 3
    assert [publisher.publish(MODEL, version) for version in (2, 3, 4)] == [False] * 3
    assert (store.version(), publisher.is_behind) == (1, True)
    assert len(caplog.records) == 1

    assert publisher.publish(MODEL, 5)
    assert (store.version(), publisher.is_behind) == (5, False)
    assert caplog.messages == [
        "version 2 of policy p is not published, an older one stays, if any: no room",
        "version 5 of policy p is published: there is room again",
    ]


class Noting(threading.Condition):
    """A condition that does not wait, but records its timeouts and predicates."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[float | None, bool]] = []

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.waits.append((timeout, bool(predicate())))
        return False


def test_last_policy_waits_for_room(worker: CommWorker) -> None:
    store, worker.condition = worker.policy_store, Noting()
    assert isinstance(store, NarrowStore)
    store.refusals = 2
    publisher = PolicyPublisher(worker, "p")
    assert publisher.publish(MODEL, 9, is_last=True)
    assert store.version() == 9
    assert worker.condition.waits == [(0.2, False)] * 2


def test_first_policy_is_tried_until_there_is_room(worker: CommWorker) -> None:
    publisher, store = PolicyPublisher(worker, "p"), worker.policy_store
    pauses: list[tuple[float, str]] = []
    worker.pause = lambda seconds: pauses.append(  # type: ignore[method-assign]
        (seconds, publisher.held_up_by)
    )
    assert isinstance(store, NarrowStore)
    store.refusals = 2
    assert publisher.publish(MODEL, 0)
    assert (store.version(), publisher.held_up_by) == (0, "")
    assert pauses == [(0.2, "no room")] * 2


def test_stopping_worker_gives_up_its_first_policy(worker: CommWorker) -> None:
    publisher, store = PolicyPublisher(worker, "p"), worker.policy_store
    worker.is_stopping = True
    assert isinstance(store, NarrowStore)
    store.refusals = 2
    assert not publisher.publish(MODEL, 0)
    assert (store.refusals, publisher.held_up_by) == (1, "")
