"""Runs continue after workers are lost, and every sample is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.errors import PoisonTaskError, WorkerLostError
from dingsdk.worker.learner.checkpoint import load_checkpoint

from .clusters import JobCluster

CONCURRENCIES = ["threads", pytest.param("greenlets", marks=pytest.mark.slow)]


@pytest.fixture(params=CONCURRENCIES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobCluster]:
    with JobCluster(tmp_path, request.param) as made:
        yield made


def test_run_continues_when_a_collector_is_lost(cluster: JobCluster) -> None:
    cluster.expect(lambda: cluster.train_iter() > 20)
    before = cluster.coordinator.status().env_steps
    cluster.transport.abandon_worker("collector-0")
    cluster.expect(lambda: cluster.coordinator.status().env_steps > before + 1000)
    # The collector noticed that, and joined again.
    cluster.expect(lambda: cluster.coordinator.status().workers["collector"] == 2)
    cluster.coordinator.validate_state()


def test_lost_learner_resumes_from_its_checkpoint_with_the_same_experience(
    cluster: JobCluster,
) -> None:
    cluster.expect(lambda: cluster.train_iter() > 120)
    cluster.transport.abandon_worker("learner-0")
    saved = load_checkpoint(cluster.run_dir / "ckpt").iteration
    assert saved >= 100
    cluster.expect(lambda: cluster.coordinator.status().workers["learner"] == 1)
    at_return = cluster.train_iter()
    cluster.expect(lambda: cluster.train_iter() > at_return + 50)
    assert cluster.train_iter() > saved
    cluster.coordinator.validate_state()


def test_repeatedly_lost_learner_ends_the_run(cluster: JobCluster) -> None:
    task_id = cluster.lose_over_and_over("learner")

    assert cluster.coordinator.end.wait(40.0)
    failure = cluster.coordinator.end.failure
    assert isinstance(failure, PoisonTaskError)
    assert (failure.task_id, failure.attempts, failure.worker_id) == (task_id, 3, "learner-0")
    assert isinstance(failure.__cause__, WorkerLostError)
