"""Payloads that are swapped for others, or damaged, are counted and replaced."""

from __future__ import annotations

import logging
import struct
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
    cluster.expect(lambda: status().samples.evicted.get("corrupt", 0) > 0)
    cluster.coordinator.announced = None
    assert store.corrupt_count > 0
    assert status().samples.evicted.get("missing", 0) == 0
    cluster.coordinator.validate_state()
    before = status().train_iter
    cluster.expect(lambda: status().train_iter > before + 5)


@pytest.mark.parametrize("transport", ["flask_fs"])
def test_swapped_payload_is_counted_as_corrupt_and_replaced(
    cluster: JobCluster, tmp_path: Path
) -> None:
    contents: list[bytes] = []

    def swap(data_id: str) -> None:
        """Replace the file of an odd-numbered payload with that of an even-numbered one."""
        (path,) = cluster.transport.data_dir.glob(f"data/*/{data_id}.ding")
        if int(data_id.rpartition("-")[2]) % 2 == 0:
            contents.append(path.read_bytes())
        elif contents:
            copy = tmp_path / data_id
            copy.write_bytes(contents[-1])
            copy.chmod(0o600)
            copy.replace(path)

    expect_replaced(cluster, swap)


@pytest.mark.parametrize("transport", ["shared_memory"])
def test_flipped_byte_in_a_live_segment_is_counted_as_corrupt_and_replaced(
    cluster: JobCluster, caplog: pytest.LogCaptureFixture
) -> None:
    flipped = set()

    def flip(data_id: str) -> None:
        """Flip the last byte of a payload in its segment."""
        for path in cluster.transport.data_dir.glob("data/*.seg"):
            entries = path.read_bytes()
            at = entries.find(data_id.encode() + b"\0")
            if at >= 0:
                size, place = struct.unpack_from("<Qq", entries, at + 64)
                with path.open("r+b") as file:
                    file.seek(place + size - 1)
                    file.write(bytes([entries[place + size - 1] ^ 1]))
                flipped.add(data_id)

    with caplog.at_level(logging.WARNING, "dingsdk_shared_memory"):
        expect_replaced(cluster, flip)

    named = [record.getMessage() for record in caplog.records if "damaged" in record.msg]
    assert named
    for data_id in flipped:
        assert sum(f"'{data_id}'" in text for text in named) <= 1
    assert len(named) == cluster.transport.data_store().corrupt_count
