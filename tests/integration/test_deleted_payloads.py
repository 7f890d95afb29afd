"""Many payloads disappear at once: the learner waits once for all, not once for each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.policy.threads import torch_threads
from dingsdk.worker import Coordinator

from .job_cluster import JobCluster

BUFFER = "policy.other.replay_buffer"
LIMITER = f"{BUFFER}.limiter"
SETS = (
    "policy.collect.n_sample=8",
    f"{BUFFER}.replay_buffer_size=4000",
    f"{LIMITER}.type=samples_per_insert",
    f"{LIMITER}.samples_per_insert=2",
    f"{LIMITER}.min_size=16",
    f"{LIMITER}.error_buffer=100000",  # collectors go on while the learner waits
)
MOST_S = 3.0
"""One search for lost payloads takes 0.5 s; 50 separate searches would take 25 s."""


class HoldingCoordinator(Coordinator):
    """Leases no rows to the learner while ``is_holding``."""

    is_holding = False

    def deal_with_learner_get_data(self, state: Any, demand: Any) -> dict[str, Any] | None:
        return None if self.is_holding else super().deal_with_learner_get_data(state, demand)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobCluster]:
    with torch_threads(1):
        made = JobCluster(tmp_path, None, *SETS, coordinator_cls=HoldingCoordinator)
        yield made
        made.close()


def live(cluster: JobCluster) -> set[str]:
    with cluster.coordinator.condition:
        return cluster.coordinator._state.live_payloads


@pytest.mark.slow
def test_learner_continues_soon_after_many_payloads_are_deleted(
    cluster: JobCluster, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = cluster.coordinator
    assert isinstance(coordinator, HoldingCoordinator)
    cluster.expect(lambda: cluster.train_iter() > 20)
    coordinator.is_holding = True
    known = live(cluster)
    cluster.expect(lambda: len(live(cluster) - known) >= 50)
    lost = live(cluster) - known  # the learner has not read them yet
    cluster.transport.data_store().delete(lost)
    coordinator.is_holding = False

    longest_s, at, since = 0.0, cluster.train_iter(), time.monotonic()
    until = at + 60

    def has_trained_on() -> bool:
        nonlocal longest_s, at, since
        now = cluster.train_iter()
        if now != at:
            longest_s = max(longest_s, time.monotonic() - since)
            at, since = now, time.monotonic()
        return at > until

    cluster.expect(has_trained_on)
    assert "cannot be read" in caplog.text
    assert longest_s < MOST_S
    coordinator.validate_state()
