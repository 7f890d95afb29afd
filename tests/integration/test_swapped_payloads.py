"""Payloads that are swapped for others, or damaged, are counted and replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dingsdk.policy.threads import torch_threads
from dingsdk.worker import Coordinator

from .job_cluster import JobCluster


class WatchedCoordinator(Coordinator):
    """Calls ``announced`` with the id of each payload before acknowledging it."""

    announced: Callable[[str], None] | None = None

    def deal_with_collector_send_data(
        self, task_id: str, buffer_id: str, data_id: str, data: Mapping[str, Any]
    ) -> bool:
        if self.announced is not None:
            self.announced(data_id)
        return super().deal_with_collector_send_data(task_id, buffer_id, data_id, data)


@pytest.fixture
def cluster(tmp_path: Path, transport: str) -> Iterator[JobCluster]:
    if transport == "shared_memory":
        pytest.importorskip("dingsdk_shared_memory")
    room = "policy.other.replay_buffer.replay_buffer_size=160"
    with torch_threads(1):
        made = JobCluster(
            tmp_path / "run", None, room, transport=transport, coordinator_cls=WatchedCoordinator
        )
        yield made
        made.close()
        made.transport.remove_data()


def expect_replaced(cluster: JobCluster, harm: Callable[[str], None]) -> None:
    """Damage payloads; expect them to be evicted as corrupt while training continues."""
    store, status = cluster.transport.data_store(), cluster.coordinator.status
    cluster.expect(lambda: status().train_iter > 0)
    # Before the acknowledgement, so that the learner has not read them. More are damaged until one
    # is counted: rows overwritten before the learner reports them count as overwritten.
    cluster.coordinator.announced = harm
    cluster.expect(lambda: status().evicted.get("corrupt", 0) > 0)
    cluster.coordinator.announced = None
    assert store.corrupt_count > 0
    assert status().evicted.get("missing", 0) == 0
    cluster.coordinator.validate_state()
    before = status().train_iter
    cluster.expect(lambda: status().train_iter > before + 5)


@pytest.mark.parametrize("transport", ["flask_fs", "shared_memory"])
def test_swapped_payload_is_counted_as_corrupt_and_replaced(cluster: JobCluster) -> None:
    contents: list[bytes] = []

    def swap(data_id: str) -> None:
        """Replace the file of an odd-numbered payload with that of an even-numbered one."""
        (path,) = cluster.transport.data_dir.glob(f"data/*/{data_id}.ding")
        if int(data_id.rpartition("-")[2]) % 2 == 0:
            contents.append(path.read_bytes())
        elif contents:
            copy = cluster.transport.data_dir / data_id
            copy.write_bytes(contents[-1])
            copy.chmod(0o600)
            copy.replace(path)

    expect_replaced(cluster, swap)
