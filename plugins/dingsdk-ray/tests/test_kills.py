"""What is left when an actor, the hub or a node is killed, and how long others wait then."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dingsdk_ray.hub import INLINE_BYTES
from dingsdk_ray.transport import RayTransport

from dingsdk import SampleBatch
from dingsdk.errors import DataMissingError, WorkerLostError
from dingsdk.worker.comm import MasterListener, TaskAnswer, TaskMessage, WorkerInfo

pytestmark = pytest.mark.slow

ANSWER_S = 2.0
PATIENCE_S = 60.0
NAMESPACE = "check"
SMALL, LARGE = 8, INLINE_BYTES


def payload(rows: int) -> SampleBatch:
    return SampleBatch({"obs": np.arange(rows, dtype=np.float32)})


class Writer:
    """An actor that stores payloads, as a collector does."""

    def put(self, section: dict[str, Any], run_dir: Path) -> str:
        import ray

        store = RayTransport(section, run_dir).data_store()
        store.put("small", payload(SMALL))
        store.put("large", payload(LARGE))
        return str(ray.get_runtime_context().get_node_id())


class Heard(MasterListener):
    """What a master heard."""

    def __init__(self) -> None:
        self.joined: queue.Queue[WorkerInfo] = queue.Queue()
        self.left: queue.Queue[str] = queue.Queue()

    def worker_joined(self, info: WorkerInfo) -> None:
        self.joined.put(info)

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        pass

    def worker_left(self, worker_id: str, reason: str) -> None:
        self.left.put(reason)

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        pass


@pytest.fixture
def transport(ray_address: str, tmp_path: Path) -> Iterator[RayTransport]:
    made = RayTransport({"namespace": NAMESPACE, "request_timeout_s": ANSWER_S}, tmp_path)
    yield made
    made.close()
    made.remove_data()


def hub_pid() -> int:
    import ray

    hub = ray.get_actor("hub", namespace=NAMESPACE)
    return int(ray.get(hub.__ray_call__.remote(lambda self: os.getpid()), timeout=PATIENCE_S))


def test_payloads_survive_the_actor_that_put_them(
    transport: RayTransport, ray_address: str
) -> None:
    import ray

    store = transport.data_store()
    assert len(store) == 0
    writer = ray.remote(num_cpus=0)(Writer).remote()
    section = {"address": ray_address, "namespace": NAMESPACE}
    ray.get(writer.put.remote(section, transport.run_dir), timeout=PATIENCE_S)
    ray.kill(writer, no_restart=True)
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get(writer.put.remote(section, transport.run_dir), timeout=PATIENCE_S)
    for name, rows in (("small", SMALL), ("large", LARGE)):
        assert store.has(name)
        assert store.get(name) == payload(rows)


def test_large_payloads_are_read_without_a_copy(transport: RayTransport) -> None:
    store = transport.data_store()
    store.put("large", payload(LARGE))
    first, second = (store.get("large").columns["obs"] for _ in range(2))
    assert first.__array_interface__["data"][0] == second.__array_interface__["data"][0]


def test_hub_that_is_killed_loses_payloads_but_hangs_nobody(
    transport: RayTransport, ray_address: str
) -> None:
    heard, master = Heard(), transport.master_end()
    end = transport.slave_end(master.open(heard))
    end.join(WorkerInfo("w0", "collector"), PATIENCE_S)
    before = heard.joined.get(timeout=PATIENCE_S).incarnation
    store = transport.data_store()
    store.put("large", payload(LARGE))
    os.kill(hub_pid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(DataMissingError):
        store.get("large", timeout_s=1.0)
    assert time.monotonic() - started < 1.0 + 2 * ANSWER_S
    assert heard.left.get(timeout=PATIENCE_S) == "the hub was restarted"
    with pytest.raises(WorkerLostError) as caught:
        end.next_task(PATIENCE_S)
    assert caught.value.facts.get("restarted")
    end.join(WorkerInfo("w0", "collector"), PATIENCE_S)
    after = heard.joined.get(timeout=PATIENCE_S).incarnation
    assert after > before
    master.send("w0", after, TaskMessage("t1", {"name": "null"}))
    found = end.next_task(PATIENCE_S)
    assert found is not None
    assert found.task_id == "t1"
    assert not store.has("large", 0.0)
    store.put("next", payload(SMALL))
    assert store.get("next") == payload(SMALL)


def test_hub_that_does_not_answer_ends_a_read_at_its_deadline(
    transport: RayTransport, ray_address: str
) -> None:
    store = transport.data_store()
    store.put("large", payload(LARGE))
    pid = hub_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(DataMissingError, match="did not answer"):
            store.get("large", timeout_s=0.5)
        assert not store.has("large", 0.0)
        with pytest.raises(WorkerLostError, match="did not answer"):
            store.put("more", payload(SMALL))
        assert time.monotonic() - started < 0.5 + 5 * ANSWER_S
    finally:
        os.kill(pid, signal.SIGCONT)
    assert store.get("large", PATIENCE_S) == payload(LARGE)


def test_payloads_survive_the_node_of_their_writer(tmp_path: Path) -> None:
    # A process of its own: one is in one cluster at a time.
    command = [sys.executable, str(Path(__file__).with_name("lost_node.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "found").read_text().split() == ["small", "large"]
