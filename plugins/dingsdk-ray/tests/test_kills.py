"""Kills of an actor, the gateway or a node: which data survives, and how long others wait."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from dingsdk_ray.cluster import NAMESPACE
from dingsdk_ray.gateway_client import SMALL_BYTES
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.run_memory import folder_of

from dingsdk import SampleBatch
from dingsdk.errors import DataMissingError, WorkerLostError
from dingsdk.testing.transport_bench import Recorder
from dingsdk.worker.comm import TaskMessage, WorkerInfo

pytestmark = pytest.mark.slow

ANSWER_S = 2.0
PATIENCE_S = 60.0
STORE_BYTES = 100 << 20  # as in conftest
SIZES = {"small": 8, "large": SMALL_BYTES}


def payload(rows: int) -> SampleBatch:
    return SampleBatch({"obs": np.arange(rows, dtype=np.float32)})


class Writer:
    """An actor that stores payloads, as a collector does."""

    def put(self, transport_class: Any, section: dict[str, Any], run_dir: Path) -> None:
        transport = transport_class(section, run_dir)
        if transport_class is not RayTransport:
            transport.find_gateway()
        store = transport.data_store()
        for name, rows in SIZES.items():
            store.put(name, payload(rows))


def pid_of_gateway(run_dir: Path) -> int:
    gateway = ray.get_actor(folder_of(run_dir).name, namespace=NAMESPACE)
    return int(ray.get(gateway.__ray_call__.remote(lambda self: os.getpid()), timeout=PATIENCE_S))


@pytest.mark.parametrize("is_far", [False, True])
def test_payloads_survive_the_actor_that_put_them(
    near: RayTransport, far_class: Any, is_far: bool
) -> None:
    with ExitStack() as until_close:
        near.open_gateway(until_close)
        writer = ray.remote(num_cpus=0)(Writer).remote()
        section = {"address": near.cfg.address}
        kind = far_class if is_far else RayTransport
        ray.get(writer.put.remote(kind, section, near.run_dir), timeout=PATIENCE_S)
        ray.kill(writer, no_restart=True)
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(writer.__ray_ready__.remote(), timeout=PATIENCE_S)
        store = near.data_store()
        assert len(store) == len(SIZES)
        for name, rows in SIZES.items():
            assert store.has(name)
            assert store.get(name) == payload(rows)


def test_workers_continue_after_the_gateway_is_killed(near: RayTransport, far: Any) -> None:
    heard, master = Recorder(threading.Condition(), PATIENCE_S), near.master_end()
    end = far.slave_end(master.open(heard))
    end.join(WorkerInfo("w0", "collector"), PATIENCE_S)
    (joined,) = heard.expect("joined", "w0")
    store, policies = far.data_store(), far.policy_store()
    store.put("before", payload(SIZES["large"]))
    policies.publish("p", {"w": np.ones(SMALL_BYTES)}, 1)
    assert policies.newest("p") is not None
    os.kill(pid_of_gateway(near.run_dir), signal.SIGKILL)
    store.put("after", payload(SIZES["small"]))
    assert store.get("before") == payload(SIZES["large"])
    assert near.data_store().get("after") == payload(SIZES["small"])
    found = policies.newest("p")
    assert found is not None
    assert found[0] == 1
    assert np.array_equal(found[1]["w"], np.ones(SMALL_BYTES))
    master.send("w0", joined.incarnation, TaskMessage("t1", {"name": "null"}))
    task = end.next_task(PATIENCE_S)
    assert task is not None
    assert task.task_id == "t1"
    assert heard.of("left", "w0") == []


def test_gateway_that_does_not_answer_ends_calls_at_their_deadlines(
    near: RayTransport, far_class: Any
) -> None:
    far = far_class({"address": near.cfg.address, "lost_after_s": ANSWER_S}, near.run_dir)
    far.find_gateway()
    with ExitStack() as until_close:
        until_close.callback(far.close)
        near.open_gateway(until_close)
        store = far.data_store()
        near.data_store().put("large", payload(SIZES["large"]))
        pid = pid_of_gateway(near.run_dir)
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(DataMissingError):
                store.get("large", timeout_s=0.5)
            assert not store.has("large", 0.0)
            with pytest.raises(WorkerLostError, match="did not answer"):
                store.put("more", payload(SIZES["small"]))
            assert time.monotonic() - started < 0.5 + 5 * ANSWER_S
        finally:
            os.kill(pid, signal.SIGCONT)
        assert store.get("large", PATIENCE_S) == payload(SIZES["large"])


def test_payloads_beyond_the_size_of_the_object_store_arrive(near: RayTransport, far: Any) -> None:
    rows, held = 2 << 20, []
    with ExitStack() as until_close:
        near.open_gateway(until_close)
        store = far.data_store()
        for number in range(STORE_BYTES // (4 * rows) + 4):
            store.put(f"p{number}", payload(rows))
            held.append(store.get(f"p{number}"))  # keep the views of the object store
        assert all(each == payload(rows) for each in held)


def run_script(name: str, folder: Path, timeout_s: float) -> None:
    """Run a script of this folder: a new process, because a process can be in only one cluster."""
    command = [sys.executable, str(Path(__file__).with_name(name)), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr


def test_workers_start_on_a_node_that_joins_and_payloads_survive_the_node_of_their_writer(
    tmp_path: Path,
) -> None:
    run_script("lost_node.py", tmp_path, timeout_s=120)
    assert (tmp_path / "found").read_text().split() == ["small", "large"]


@pytest.mark.timeout(400)
def test_run_continues_with_a_learner_on_another_node_after_the_node_of_the_first_died(
    tmp_path: Path,
) -> None:
    run_script("learner_node.py", tmp_path, timeout_s=360)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["reason"], result["env_steps"] >= 15_000) == ("limit", True)
    assert result["train_iter"] > 100  # when the node was killed
    samples = result["samples"]
    assert samples["live"] + sum(samples["evicted"].values()) == samples["acknowledged"] >= 15_000
