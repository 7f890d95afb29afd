"""The policy store is full: training continues, and a policy is published when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .clusters import JobCluster

NO_ROOM_BYTES = 1 << 60
WARNING = "is not published"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobCluster]:
    with JobCluster(tmp_path, None, "system.learner.send_policy_freq=5") as made:
        yield made


def policy_id(cluster: JobCluster) -> str:
    return str(cluster.running("learner").task["policy_id"])


def published(cluster: JobCluster, name: str) -> int:
    found = cluster.transport.policy_store().newest(name)
    return -1 if found is None else int(found[0])


def test_training_continues_without_room_for_policies_and_publishes_later(
    cluster: JobCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.expect(lambda: cluster.train_iter() > 10)
    name = policy_id(cluster)
    store = cluster.transport.policy_store()
    room, store._min_free_bytes = store._min_free_bytes, NO_ROOM_BYTES
    cluster.expect(lambda: WARNING in caplog.text)
    version = published(cluster, name)

    until = cluster.train_iter() + 100
    cluster.expect(lambda: cluster.train_iter() > until)
    assert published(cluster, name) == version
    assert caplog.text.count(WARNING) == 1

    store._min_free_bytes = room
    cluster.expect(lambda: published(cluster, name) > until)


def test_run_without_room_for_its_last_policy_ends_without_error(
    cluster: JobCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.expect(lambda: cluster.train_iter() > 10)
    name = policy_id(cluster)
    cluster.transport.policy_store()._min_free_bytes = NO_ROOM_BYTES
    cluster.expect(lambda: WARNING in caplog.text)
    version = published(cluster, name)
    assert cluster.coordinator.close() == []
    assert cluster.coordinator.end.failure is None
    assert published(cluster, name) == version
