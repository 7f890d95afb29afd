"""A coordinator runs whole tasks with workers that only speak the protocol."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import DataMissingError, TaskFail
from dingsdk.pipeline.train import compile_run
from dingsdk.plugins import default_manager
from dingsdk.worker import Coordinator
from dingsdk.worker.comm.naive import PAYLOADS, NaiveCollector, NaiveLearner
from dingsdk.worker.coordinator import TaskState

CAPACITY = 128


class Cluster:
    """A coordinator and its transport; the test starts the workers."""

    def __init__(self, tmp_path: Path, concurrency: str) -> None:
        sets = (
            f"system.transport.concurrency={concurrency}",
            "system.transport.check_wire=true",
            "policy.other.commander.type=naive",
            f"policy.other.replay_buffer.replay_buffer_size={CAPACITY}",
            f"policy.collect.n_sample={CAPACITY}",
        )
        cfg = compile_run("cartpole-dqn", "parallel", "in_memory", sets, 0)
        self.transport = default_manager().create("transports", cfg.system.transport, tmp_path)
        self.coordinator = Coordinator(cfg, self.transport)
        self.address = self.coordinator.start()

    def collector_task(self) -> TaskState | None:
        tasks = list(self.coordinator.state.running.values())
        return next((task for task in tasks if task.role == "collector"), None)

    def expect(self, predicate: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20.0
        pause = threading.Event()
        while not predicate():
            assert time.monotonic() < deadline
            pause.wait(0.005)


@pytest.fixture(params=["greenlets", "threads"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, request.param)
    yield made
    assert made.coordinator.close() == []
    made.transport.close()


def test_coordinator_finishes_the_tasks_of_naive_workers(cluster: Cluster) -> None:
    collector, learner = NaiveCollector(cluster.transport), NaiveLearner(cluster.transport)

    learner.start(cluster.address)
    collector.start(cluster.address)

    assert cluster.coordinator.end.wait(20.0)
    assert cluster.coordinator.end.failure is None
    assert cluster.coordinator.status().train_iter == 5
    # The collector may get a second task before the learner is done.
    tasks = Counter(data_id.rpartition("_")[0] for data_id in learner.seen)
    assert 1 <= max(tasks.values()) <= PAYLOADS
    assert cluster.coordinator.close() == []
    for worker in (collector, learner):
        worker.close()


def test_naive_worker_refuses_an_unknown_task_and_a_missing_payload(cluster: Cluster) -> None:
    worker = NaiveCollector(cluster.transport)
    with pytest.raises(TaskFail) as caught:
        worker._process_task({"name": "nonsense"})
    assert caught.value.result == {"message": "task name error"}
    data = {"announcements": [{"data_id": "gone", "rows": 1}]}
    with pytest.raises(DataMissingError):
        NaiveLearner(cluster.transport)._process_task({"name": "learner_learn_task", "data": data})


def test_naive_collector_reports_each_payload_once_and_then_that_it_is_done(
    cluster: Cluster,
) -> None:
    worker, store = NaiveCollector(cluster.transport), cluster.transport.data_store()
    ids = {"task_id": "t", "buffer_id": "b"}
    closed = {"eval_flag": False, "step_count": 314, "reward_raw": [], "reward_mean": 0.0}
    closed |= {"train_iter": 0, **ids}
    assert worker._process_task({"name": "resource"}) == {"cpu": "20", "gpu": "1"}
    for _ in range(2):  # each task starts its counts at 0
        worker._process_task({"name": "collector_start_task", "task_info": ids})
        for number in range(1, PAYLOADS + 1):
            report = {"data_id": f"naive_t_{number}", "rows": 1, "policy_iter": 0}
            report |= {"cur_episode": 0, "cur_step": number, "cur_sample": number}
            answer = worker._process_task({"name": "collector_data_task"})
            assert answer == {"reports": [report], "has_ended": False, **ids}
        close = worker._process_task({"name": "collector_close_task"})
        assert close == {**closed, "collector_done": False}
        done = {"collector_done": True, "cur_episode": 1, "cur_step": 314, "cur_sample": 314}
        answer = worker._process_task({"name": "collector_data_task"})
        assert answer == {"reports": [done], "has_ended": True, **ids}
        close = worker._process_task({"name": "collector_close_task"})
        assert close == {**closed, "collector_done": True}
    row = {key: column.tolist() for key, column in store.get("naive_t_1").columns.items()}
    assert row == {
        "obs": [[0.0, 0.0]],
        "next_obs": [[0.0, 0.0]],
        "action": [0],
        "reward": [1.0],
        "done": [False],
    }


class EndlessCollector(NaiveCollector):
    """A collector that never reports anything."""

    def _data(self) -> dict[str, Any]:
        return {"reports": [], "has_ended": False, **self._ids()}


class SmallLearner(NaiveLearner):
    """A learner that holds one payload, and is never done."""

    def _info(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        return {**super()._info(reports), "learner_done": False, "is_idle": True}


def test_payload_that_vanished_before_it_was_acknowledged_is_left_out(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    collector, learner = EndlessCollector(cluster.transport), SmallLearner(cluster.transport)
    learner.start(cluster.address)
    collector.start(cluster.address)
    cluster.expect(lambda: cluster.collector_task() is not None)
    state = cluster.collector_task()
    assert state is not None

    ids, meta = (state.task_id, state.buffer_id), {"rows": CAPACITY, "policy_iter": 0}
    assert cluster.coordinator.deal_with_collector_send_data(*ids, "vanished", meta)
    assert "vanished" in caplog.text
    assert cluster.coordinator.status().samples.acknowledged == 0
    cluster.coordinator.validate_state()
    for worker in (collector, learner):
        worker.close()
