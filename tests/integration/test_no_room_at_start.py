"""The disk is full from the start: the run waits, and begins when there is room."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dingsdk.errors import StorageFullError
from dingsdk.worker import Coordinator
from dingsdk.worker.comm import collector
from tools.os_calls import failing_calls

from .clusters import JobCluster

POLICY_TIMEOUT_S = 0.5
SETS = (f"policy.collect.parallel_collector.policy_timeout_s={POLICY_TIMEOUT_S}",)


class FullCoordinator(Coordinator):
    """Simulates a full disk from the end of ``start()`` on."""

    def start(self) -> str:
        address = super().start()
        self.outage = ExitStack()
        self.outage.enter_context(failing_calls(("writev",), 1, errno.ENOSPC, persistent=True))
        return address


@pytest.fixture(autouse=True)
def _impatient_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "ANSWER_WITHIN_S", 0.1)


@contextmanager
def started(tmp_path: Path, *sets: str) -> Iterator[tuple[JobCluster, FullCoordinator]]:
    with JobCluster(tmp_path, None, *sets, coordinator_cls=FullCoordinator) as cluster:
        assert isinstance(cluster.coordinator, FullCoordinator)
        yield cluster, cluster.coordinator


def test_run_begins_when_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with started(tmp_path, *SETS) as (cluster, coordinator):
        with coordinator.outage:
            cluster.expect(lambda: "ENOSPC" in coordinator.status().held_up_by)
            cluster.running("collector")
            # Longer than collectors wait for a policy of a learner that sends no messages.
            assert not coordinator.end.wait(2.5 * POLICY_TIMEOUT_S)
            assert coordinator.status().env_steps == 0
        cluster.expect(lambda: cluster.train_iter() > 20)
        assert coordinator.status().held_up_by == ""
        coordinator.validate_state()
    assert caplog.text.count("there is no room in the storage") == 1
    assert caplog.text.count("there is room in the storage again") == 1


def test_run_without_room_ends_after_its_timeout_and_says_what_to_do(tmp_path: Path) -> None:
    with (
        started(tmp_path, "system.coordinator.storage_timeout_s=0.5") as (_, coordinator),
        coordinator.outage,
    ):
        assert coordinator.end.wait(40.0)
    failure = coordinator.end.failure
    assert isinstance(failure, StorageFullError)
    assert "system.coordinator.storage_timeout_s" in str(failure)
    assert "ENOSPC" in str(failure)
