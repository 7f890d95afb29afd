"""Payloads are kept while a learner is paused for longer than ``orphan_grace_s``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk import SampleBatch, hookimpl
from tests.own_plugins import using

from .clusters import JobCluster

PATIENCE_S = 40.0
ORPHAN_GRACE_S = 2.0
"""On a busy machine a collector may take a moment between storing a payload and announcing it."""


class Pause:
    """Pauses the learner after an iteration once ``is_wanted`` is set."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.has_begun, self.is_over = threading.Event(), threading.Event()

    @hookimpl
    def dingsdk_after_iter(self, learner: Any, iteration: int) -> None:
        if self.is_wanted:
            self.is_wanted = False
            self.has_begun.set()
            self.is_over.wait(PATIENCE_S)


@pytest.fixture
def pause() -> Iterator[Pause]:
    made = Pause()
    with using(made):
        yield made


@pytest.fixture
def cluster(tmp_path: Path, pause: Pause) -> Iterator[JobCluster]:
    grace = f"system.coordinator.orphan_grace_s={ORPHAN_GRACE_S}"
    with JobCluster(tmp_path, "threads", grace) as made:
        yield made
        pause.is_over.set()


def test_payloads_that_wait_for_room_are_kept(cluster: JobCluster, pause: Pause) -> None:
    store = cluster.transport.data_store()
    cluster.expect(lambda: cluster.train_iter() > 5)
    pause.is_wanted = True
    assert pause.has_begun.wait(PATIENCE_S)

    def waiting() -> set[str]:
        with cluster.coordinator.condition:
            (payloads,) = cluster.coordinator.state.buffers.values()
            return store._payloads.keys() - payloads.live_ids()

    def no_more_come() -> bool:
        before = set(store._payloads)
        time.sleep(1.0)
        return len(waiting()) >= 8 and set(store._payloads) == before

    # Each collector has payloads in its queue, beside the one that the coordinator holds. While
    # there is room, payloads are accepted from the queues, and later overwritten and deleted.
    cluster.expect(no_more_come)
    found = waiting()
    store.put("nobodys", SampleBatch({"x": np.zeros(1)}))
    cluster.expect(lambda: not store.has("nobodys"))
    assert [name for name in found if not store.has(name)] == []

    pause.is_over.set()
    until = cluster.train_iter() + 50
    cluster.expect(lambda: cluster.train_iter() > until)
    assert cluster.coordinator.status().samples.evicted.get("missing", 0) == 0
    cluster.coordinator.validate_state()
