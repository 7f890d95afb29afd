"""A coordinator runs whole tasks with workers that only speak the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker import Coordinator
from dingsdk.worker.comm.naive import PAYLOADS, NaiveCollector, NaiveLearner


@pytest.mark.parametrize("concurrency", ["turns", "threads"])
def test_coordinator_finishes_the_tasks_of_naive_workers(tmp_path: Path, concurrency: str) -> None:
    sets = (
        f"system.transport.concurrency={concurrency}",
        "system.transport.check_wire=true",
        "policy.other.commander.type=naive",
    )
    cfg = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 0)
    transport = default_manager().create("transports", cfg.system.transport, tmp_path)
    coordinator = Coordinator(cfg, transport)
    address = coordinator.start()
    collector, learner = NaiveCollector(transport), NaiveLearner(transport)

    learner.start(address)
    collector.start(address)

    assert coordinator.wait(20.0)
    assert coordinator.failure is None
    assert coordinator.status().train_iter == 5
    assert 2 <= len(learner.seen) <= PAYLOADS
    assert coordinator.close() == []
    for worker in (collector, learner):
        worker.close()
    transport.close()
