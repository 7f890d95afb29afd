"""A payload's file that was swapped for another good one is damage, counted and replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.policy.threads import torch_threads
from dingsdk.worker import Coordinator

from .job_cluster import JobCluster


class WatchedCoordinator(Coordinator):
    """Calls a test for each payload that it is about to acknowledge."""

    announced: Callable[[str], None] | None = None

    def deal_with_collector_send_data(self, state: Any, report: Mapping[str, Any]) -> bool:
        if self.announced is not None:
            self.announced(str(report["data_id"]))
        return super().deal_with_collector_send_data(state, report)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobCluster]:
    room = "policy.other.replay_buffer.replay_buffer_size=160"
    with torch_threads(1):
        made = JobCluster(tmp_path / "run", None, room, coordinator_cls=WatchedCoordinator)
        yield made
        made.close()


def test_swapped_payload_is_damage_that_is_counted_and_replaced(
    cluster: JobCluster, tmp_path: Path
) -> None:
    store, status = cluster.transport.data_store(), cluster.coordinator.status
    cluster.expect(lambda: status().train_iter > 0)
    contents: list[bytes] = []

    def swap(data_id: str) -> None:
        """Give a payload of an odd number the content of an even one: a whole frame."""
        (path,) = cluster.transport.data_dir.glob(f"data/*/{data_id}.ding")
        if int(data_id.rpartition("-")[2]) % 2 == 0:
            contents.append(path.read_bytes())
        elif contents:
            copy = tmp_path / data_id
            copy.write_bytes(contents[-1])
            copy.chmod(0o600)
            copy.replace(path)

    # Unacknowledged, so that the learner has not read them. They go on coming until one is
    # counted: rows that are overwritten before the learner reports them count as overwritten.
    cluster.coordinator.announced = swap
    cluster.expect(lambda: status().evicted.get("corrupt", 0) > 0)
    cluster.coordinator.announced = None
    assert store.corrupt_count > 0
    assert status().evicted.get("missing", 0) == 0
    cluster.coordinator.validate_state()
    before = status().train_iter
    cluster.expect(lambda: status().train_iter > before + 5)
