"""A payload's file that was swapped for another good one is damage, counted and replaced."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dingsdk.pipeline.context import RunContext
from dingsdk.pipeline.parallel import worker_config
from dingsdk.pipeline.threads import torch_threads
from dingsdk.pipeline.train import compile_run
from dingsdk.pipeline.workers import make_transport, make_worker, worker_ids
from dingsdk.worker import Coordinator

SETS = (
    "env.collector_env_num=4",
    "env.collector_episode_num=50",
    "env.evaluator_env_num=2",
    "env.n_evaluator_episode=2",
    "env.stop_value=1000",
    "policy.collect.n_sample=16",
    "policy.learn.batch_size=16",
    "policy.learn.update_per_collect=2",
    "policy.other.replay_buffer.replay_buffer_size=160",
    "policy.other.commander.eval_interval=1000",
)


class Cluster:
    """One coordinator and its workers, as threads over flask_fs."""

    def __init__(self, run_dir: Path) -> None:
        cfg = compile_run("cartpole-dqn", "parallel", "flask_fs", SETS, 3)
        cfg = worker_config(RunContext(cfg=cfg, run_dir=run_dir))
        self.transport = make_transport(cfg, run_dir)
        self.coordinator = Coordinator(cfg, self.transport)
        address = self.coordinator.start()
        self.workers = [
            make_worker(role, cfg, self.transport, worker_id) for role, worker_id in worker_ids(cfg)
        ]
        for worker in self.workers:
            worker.start(address)

    def expect(self, predicate: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40.0
        pause = threading.Event()
        while not predicate():
            assert self.coordinator.failure is None, self.coordinator.failure
            assert time.monotonic() < deadline, self.coordinator.status()
            pause.wait(0.02)

    def close(self) -> None:
        assert self.coordinator.close() == []
        for worker in self.workers:
            worker.close()
        self.transport.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with torch_threads(1):
        made = Cluster(tmp_path / "run")
        yield made
        made.close()


def test_swapped_payload_is_damage_that_is_counted_and_replaced(cluster: Cluster) -> None:
    store, status = cluster.transport.data_store(), cluster.coordinator.status
    cluster.expect(lambda: status().train_iter > 0)

    def swap_newest() -> bool:
        """Give the newest payload the content of another: a whole frame of the same columns."""
        files = sorted((cluster.transport.data_dir / "data").rglob("*.ding"), key=_number)
        with contextlib.suppress(FileNotFoundError):  # deleted since
            copy = cluster.transport.data_dir.parent / "copy"
            copy.write_bytes(files[0].read_bytes())
            copy.chmod(0o600)
            copy.replace(files[-1])
        return store.corrupt_count > 0

    cluster.expect(swap_newest)
    cluster.expect(lambda: status().evicted.get("corrupt", 0) > 0)
    assert status().evicted.get("missing", 0) == 0
    cluster.coordinator.validate_state()
    before = status().train_iter
    cluster.expect(lambda: status().train_iter > before + 5)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
