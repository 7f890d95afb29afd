"""Rejected input, and the transfer of payloads and policies, with greenlets and threads."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dingsdk_in_memory.transport import InMemoryTransport

from dingsdk import SampleBatch
from dingsdk.errors import (
    ConfigError,
    ConflictError,
    WorkerLostError,
)
from dingsdk.worker.comm import LEFT, Master, Slave, WorkerInfo


def test_worker_that_leaves_a_closed_master_is_not_reported(
    transport: InMemoryTransport,
) -> None:
    told: list[Any] = []
    listener: Any = SimpleNamespace(
        worker_joined=lambda info: told.append(info.worker_id),
        worker_left=lambda worker_id, reason: told.append(reason),
    )
    master = transport.master_end()
    ends = [transport.slave_end(master.open(listener)) for _ in range(2)]
    for number, end in enumerate(ends):
        end.join(WorkerInfo(f"w{number}", "collector"), timeout_s=5.0)
    ends[0].close()
    master.close()
    ends[1].close()
    assert told == ["w0", "w1", LEFT]


def test_worker_that_has_not_joined_is_unknown(
    transport: InMemoryTransport,
) -> None:
    with pytest.raises(WorkerLostError, match="the master gave it up"):
        transport.slave_end("memory").check()


def test_foreign_address_is_refused(transport: InMemoryTransport) -> None:
    with pytest.raises(ConfigError, match="memory"):
        transport.slave_end("http://elsewhere:7235")


def test_messages_cross_by_reference_unless_they_are_checked(tmp_path: Path) -> None:
    transport = InMemoryTransport({"concurrency": "threads"}, tmp_path)
    master = Master(transport.master_end(), transport.scheduler)
    slave = Slave(
        transport,
        WorkerInfo("w0", "collector"),
        callback_fn={"echo": lambda task: {"x": task["x"]}},
    )
    slave.start(master.start())
    sent = np.arange(3)
    assert master.ask("w0", {"name": "echo", "x": sent}, 10.0)["x"] is sent
    slave.close()
    master.close()
    transport.close()


def test_payload_crosses_by_reference(transport: InMemoryTransport) -> None:
    store = transport.data_store()
    batch = SampleBatch({"obs": np.zeros((3, 2), np.float32)})
    store.put("p1", batch)
    assert np.shares_memory(store.get("p1").columns["obs"], batch.columns["obs"])


def test_another_payload_under_a_used_id_is_refused(transport: InMemoryTransport) -> None:
    store = transport.data_store()
    for _ in range(3):
        store.put("p1", SampleBatch({"reward": np.array([1.0, np.nan])}))
    with pytest.raises(ConflictError) as caught:
        store.put("p1", SampleBatch({"reward": np.array([2.0, np.nan])}))
    assert caught.value.data_id == "p1"
    assert store.get("p1").columns["reward"][0] == 1.0


NOBODY: Any = SimpleNamespace(
    worker_joined=lambda info: None, worker_left=lambda worker_id, reason: None
)


def test_worker_that_is_early_joins_once_the_master_opens(transport: InMemoryTransport) -> None:
    end, master = transport.slave_end("memory"), transport.master_end()
    info = WorkerInfo("w0", "collector")
    joining = threading.Thread(target=end.join, args=(info, 600.0), daemon=True)
    joining.start()
    threading.Event().wait(0.02)
    master.open(NOBODY)
    joining.join(20.0)
    assert not joining.is_alive()
    end.check()
