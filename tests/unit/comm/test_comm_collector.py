"""How a comm collector loads policies, reports payloads and inserts into a replay server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.config import to_easydict
from dingsdk.data import SampleBatch
from dingsdk.errors import BufferFullError, StorageFullError
from dingsdk.pipeline.worker import make_transport
from dingsdk.worker.comm.collector import BaseCommCollector

PATIENCE_S = 30.0
THREADS = {"type": "in_memory", "concurrency": "threads"}


def test_collector_waits_for_the_first_policy_only_while_the_storage_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = to_easydict({"system": {"transport": {"type": "in_memory"}}})
    transport = make_transport(cfg, tmp_path)
    worker: Any = BaseCommCollector({}, transport, "collector-0")
    worker._task_info = {"collector_cfg": {"eval_flag": False}}
    store, pauses = transport.policy_store(), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            store.publish("p", {"w": torch.zeros(1)}, 0)
        worker.is_stopping = len(pauses) == 3

    monkeypatch.setattr(worker, "pause", pause)
    assert worker.get_policy_update_info("p") is None
    assert pauses == []
    monkeypatch.setattr("dingsdk.worker.comm.collector.ANSWER_WITHIN_S", 0.0)
    worker._end = SimpleNamespace(lease_s=None)
    worker._process_data_task({"is_held_up": True})
    assert worker.get_policy_update_info("p")["iter"] == 0
    assert pauses == [1.0, 1.0]
    assert worker.get_policy_update_info("p") is None  # it has a policy already
    assert pauses == [1.0, 1.0]
    assert worker.get_policy_update_info("other") is None
    assert pauses == [1.0, 1.0, 1.0]
    worker.is_stopping = False
    worker._process_data_task({})
    assert worker.get_policy_update_info("other") is None
    assert pauses == [1.0, 1.0, 1.0]
    transport.close()


def test_close_closes_the_envs_and_the_server_connections(tmp_path: Path) -> None:
    cfg = to_easydict({"system": {"transport": THREADS}})
    transport, closed = make_transport(cfg, tmp_path), list[str]()
    worker: Any = BaseCommCollector({}, transport, "collector-0")
    for name in ("_env_pool", "replay", "inference"):
        setattr(worker, name, SimpleNamespace(close=lambda name=name: closed.append(name)))
    assert worker.close() is True
    assert closed == ["_env_pool", "replay", "inference"]
    transport.close()


def test_samples_wait_for_the_limiter_and_the_storage_of_a_replay_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = to_easydict({"system": {"transport": {"type": "in_memory"}}})
    transport = make_transport(cfg, tmp_path)
    worker: Any = BaseCommCollector({}, transport, "collector-0")
    pauses: list[float] = []
    monkeypatch.setattr(worker, "pause", pauses.append)
    errors: list[Exception] = [
        BufferFullError("the limiter"),
        StorageFullError("no room", path="p"),
        BufferFullError("the limiter"),
    ]
    held_up_by: list[str] = []
    inserted: list[Any] = []

    def insert(samples: SampleBatch, timeout_s: float) -> None:
        held_up_by.append(worker._held_up_by)
        if errors:
            raise errors.pop(0)
        inserted.append((samples.columns["collect_iter"].tolist(), timeout_s))

    worker.replay = SimpleNamespace(insert=insert, close=lambda: None)
    samples = SampleBatch({"x": np.zeros(2)})
    assert worker._insert(samples, 7)
    assert inserted == [([7, 7], 0.0)]  # the workers of this run take turns
    assert held_up_by == ["", "", "no room", "no room"]
    assert worker._held_up_by == ""
    assert pauses == [0.05, 1.0, 0.05]
    own = samples.with_columns(collect_iter=np.array([3, 6]))
    assert worker._insert(own, 3)
    assert inserted[1:] == [([3, 6], 0.0)]
    worker.is_stopping = True
    assert not worker._insert(samples, 8)
    assert len(inserted) == 2
    transport.close()


def test_collector_continues_as_soon_as_its_reports_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No wait ends by its timeout during the test.
    monkeypatch.setattr("dingsdk.worker.comm.worker.ANSWER_WITHIN_S", 600.0)
    transport = make_transport(to_easydict({"system": {"transport": THREADS}}), tmp_path)
    worker: Any = BaseCommCollector({"queue_size": 1}, transport, "collector-0")
    worker._task_info = {"task_id": "t", "buffer_id": "b"}
    worker._end = SimpleNamespace(lease_s=None)
    monkeypatch.setattr(worker, "_is_overdue", lambda: False)

    def collect() -> None:
        for number in range(3):
            worker.send_metadata({"data_id": f"p{number}", "policy_iter": 0})

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    taken: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < 3 and time.monotonic() < deadline:
        taken += [each["data_id"] for each in worker.deal_with_collector_data()["reports"]]
    collecting.join(PATIENCE_S)
    assert not collecting.is_alive()
    assert taken == ["p0", "p1", "p2"]
    transport.close()


def test_collector_without_steps_answers_at_once_until_it_may_take_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("worker", "collector"):  # no wait ends by its timeout during the test
        monkeypatch.setattr(f"dingsdk.worker.comm.{module}.ANSWER_WITHIN_S", 600.0)
    transport = make_transport(to_easydict({"system": {"transport": THREADS}}), tmp_path)
    worker: Any = BaseCommCollector({}, transport, "collector-0")
    worker._task_info = {"task_id": "t", "buffer_id": "b"}
    worker._end = SimpleNamespace(lease_s=None, check=lambda: None, renew=lambda progress: None)
    limits: list[tuple[float, int]] = []

    def collect() -> None:
        limits.extend(worker.await_steps(taken) for taken in (8, 12))
        worker.send_metadata({"data_id": "p", "policy_iter": 0})

    worker._limits = (8, 0)
    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    answer = worker._process_data_task({"step_limit": 8})
    assert (answer["reports"], answer["starved_at"]) == ([], 8)
    for told in ({"step_limit": 12}, {"step_limit": 12, "ends_now": True}):
        answer = worker._process_data_task(told)
    assert [each["data_id"] for each in answer["reports"]] == ["p"]
    assert answer["starved_at"] is None
    collecting.join(PATIENCE_S)
    assert limits == [(12, 0), (12, 0)]
    transport.close()
