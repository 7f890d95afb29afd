"""Workers that are lost, fall silent or hang: the run goes on, and nothing goes missing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dingsdk.errors import PoisonTaskError, WorkerLostError
from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.threads import torch_threads
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker import Coordinator, create_comm_collector, create_comm_learner
from dingsdk.worker.coordinator import TaskPhase, TaskState
from dingsdk.worker.learner.checkpoint import load_checkpoint

SETS = (
    "env.collector_env_num=4",
    "env.collector_episode_num=50",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "env.stop_value=1000",
    "policy.collect.n_sample=16",
    "policy.learn.batch_size=16",
    "policy.learn.update_per_collect=2",
    "policy.learn.learner.hook.save_ckpt_after_iter=50",
    "policy.other.replay_buffer.replay_buffer_size=500",
    "policy.other.commander.eval_interval=1000",
    "system.transport.check_wire=true",
    "system.coordinator.lease_s=5",
)


class Cluster:
    """One coordinator, a learner and two collectors over in_memory, driven by hand."""

    def __init__(self, tmp_path: Path, concurrency: str, *sets: str) -> None:
        sets = (*SETS, f"system.transport.concurrency={concurrency}", *sets)
        cfg = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 3)
        cfg = worker_config(RunContext(cfg=cfg, run_dir=tmp_path))
        self.run_dir = tmp_path
        self.transport = default_manager().create("transports", cfg.system.transport, tmp_path)
        self.coordinator = Coordinator(cfg, self.transport)
        address = self.coordinator.start()
        kind = {"type": "in_memory"}
        self.learner = create_comm_learner(kind, transport=self.transport, worker_id="learner-0")
        self.collectors = [
            create_comm_collector(kind, transport=self.transport, worker_id=f"collector-{index}")
            for index in range(2)
        ]
        for worker in (self.learner, *self.collectors):
            worker.start(address)

    def expect(self, predicate: Callable[[], bool], timeout_s: float = 40.0) -> None:
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while not predicate():
            assert self.coordinator.failure is None, self.coordinator.failure
            assert time.monotonic() < deadline, self.coordinator.status()
            pause.wait(0.02)

    def train_iter(self) -> int:
        return self.coordinator.status().train_iter

    def running(self, kind: str, *, attempt: int = 1) -> TaskState:
        """Wait until a task of a kind runs for that attempt; return its state."""
        found: list[TaskState] = []

        def is_there() -> bool:
            found[:] = [
                state
                for state in self.coordinator.running_tasks()
                if (state.kind, state.attempt, state.phase) == (kind, attempt, TaskPhase.RUNNING)
            ]
            return bool(found)

        self.expect(is_there)
        return found[0]

    def lose_over_and_over(self, kind: str) -> str:
        """Abandon the workers of a task until it is given up; return the task's id."""
        ids = set()
        for attempt in (1, 2, 3):
            state = self.running(kind, attempt=attempt)
            assert state.worker is not None
            ids.add(state.task_id)
            self.transport.abandon_worker(state.worker.worker_id)
        assert len(ids) == 1
        return ids.pop()

    def close(self) -> None:
        assert self.coordinator.close() == []
        for worker in (self.learner, *self.collectors):
            worker.close()
        self.transport.close()


@pytest.fixture(params=["turns", "threads"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with torch_threads(1):
        made = Cluster(tmp_path, request.param)
        yield made
        made.close()


def test_run_goes_on_when_a_collector_is_lost(cluster: Cluster) -> None:
    cluster.expect(lambda: cluster.train_iter() > 20)
    before = cluster.coordinator.status().env_steps
    cluster.transport.abandon_worker("collector-0")
    cluster.expect(lambda: cluster.coordinator.status().env_steps > before + 1000)
    # It found out, and joined again.
    cluster.expect(lambda: cluster.coordinator.status().collectors == 2)
    cluster.coordinator.validate_state()


def test_lost_learner_resumes_from_its_checkpoint_with_the_same_experience(
    cluster: Cluster,
) -> None:
    cluster.expect(lambda: cluster.train_iter() > 120)
    cluster.transport.abandon_worker("learner-0")
    saved = load_checkpoint(cluster.run_dir / "ckpt").iteration
    assert saved >= 100
    cluster.expect(lambda: cluster.coordinator.status().learners == 1)
    at_return = cluster.train_iter()
    cluster.expect(lambda: cluster.train_iter() > at_return + 50)
    assert cluster.train_iter() > saved
    cluster.coordinator.validate_state()


def test_learner_lost_over_and_over_ends_the_run(cluster: Cluster) -> None:
    task_id = cluster.lose_over_and_over("learner")

    assert cluster.coordinator.wait(40.0)
    failure = cluster.coordinator.failure
    assert isinstance(failure, PoisonTaskError)
    assert (failure.task_id, failure.attempts, failure.worker_id) == (task_id, 3, "learner-0")
    assert isinstance(failure.__cause__, WorkerLostError)


@pytest.mark.parametrize("concurrency", ["turns", "threads"])
def test_evaluation_that_loses_every_worker_is_given_up_and_the_others_go_on(
    tmp_path: Path, concurrency: str
) -> None:
    with torch_threads(1):
        cluster = Cluster(tmp_path, concurrency, "env.n_evaluator_episode=1000000")
        first = cluster.lose_over_and_over("evaluator")
        before = cluster.train_iter()
        cluster.expect(lambda: cluster.train_iter() > before + 20)
        # An evaluation that never succeeds would hide for ever that the run has no results.
        others = [cluster.lose_over_and_over("evaluator") for _ in range(2)]

        assert cluster.coordinator.wait(40.0)
        assert isinstance(cluster.coordinator.failure, PoisonTaskError)
        assert cluster.coordinator.failure.task_id == others[-1] != first
        cluster.coordinator.validate_state()
        cluster.close()


def test_every_acknowledged_sample_stays_accounted_for(cluster: Cluster) -> None:
    # Long enough for the buffer to overwrite its rows several times.
    cluster.expect(lambda: cluster.coordinator.status().env_steps > 3000)
    cluster.coordinator.validate_state()
    live = len(cluster.transport.data_store())
    assert 0 < live < 200  # payloads of overwritten rows were deleted


def test_payloads_that_vanish_are_replaced_and_counted(cluster: Cluster) -> None:
    store, book = cluster.transport.data_store(), cluster.coordinator._book

    def lose_some() -> bool:
        with cluster.coordinator.condition:
            live = book.live_payloads
        store.delete([data_id for data_id in live if data_id.endswith(("3", "7"))])
        return cluster.coordinator.status().evicted.get("missing", 0) > 0

    cluster.expect(lose_some)
    cluster.coordinator.validate_state()
    before = cluster.train_iter()
    cluster.expect(lambda: cluster.train_iter() > before + 20)
