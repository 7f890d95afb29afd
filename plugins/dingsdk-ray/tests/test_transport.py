"""Parts of the transport that need no cluster: addresses, sections, frames and stores."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dingsdk_ray.transport import RayTransport, parse_address

from dingsdk import SampleBatch
from dingsdk.errors import ClosedError, ConfigError
from dingsdk.pipeline.train import compile_run
from dingsdk.testing.transport_bench import Recorder
from dingsdk.worker.comm import TaskMessage, WorkerInfo

from .conftest import FarTransport, GatewayHere


@pytest.mark.parametrize(
    "address",
    ["", "memory", "http://h:1/a", "ray://", "ray://1f", "ray:///a", "ray://1f/a/b", "ray://1:2/a"],
)
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        parse_address(address)


def test_resources_of_an_unknown_role_are_refused() -> None:
    sets = ["system.transport.resources.colector.num_cpus=1"]
    with pytest.raises(ConfigError, match=r"did you mean 'collector'; roles: .*learner"):
        compile_run("cartpole-dqn", "parallel", "ray", sets)
    with pytest.raises(ConfigError, match="'xyz', which is no role; roles: "):
        compile_run("cartpole-dqn", "parallel", "ray", ["system.transport.resources.xyz={}"])


def test_coordinator_of_a_local_ray_is_reached_by_its_socket(tmp_path: Path) -> None:
    transport = RayTransport({}, tmp_path)
    with pytest.raises(ConfigError, match="in a cluster"):
        transport.slave_end("ray://1f2e/dingsdk-0-1f2e")
    transport.close()
    transport.remove_data()


def test_section_is_read_with_resources_by_role(tmp_path: Path) -> None:
    cfg = {"resources": {"learner": {"num_cpus": 2, "num_gpus": 1}}, "placement": "SPREAD"}
    section = RayTransport({**cfg}, tmp_path).cfg
    assert section.resources["learner"]["num_gpus"] == 1
    RayTransport({"resources": {"learner": {"num_cpus": 0}}}, tmp_path)  # Ray allows it
    with pytest.raises(ConfigError, match="num_gpu"):
        RayTransport({"resources": {"learner": {"num_gpu": 1}}}, tmp_path)


@pytest.mark.parametrize("store", ["data_store", "policy_store"])
def test_store_of_the_wrong_node_is_refused(tmp_path: Path, store: str) -> None:
    transport = FarTransport({"address": "auto"}, tmp_path)
    getattr(transport, store)()  # before it is known that the coordinator is on another node
    with pytest.raises(RuntimeError, match="after slave_end"):
        transport.slave_end("ray://1f/run")
    transport.close()
    transport.remove_data()


def test_worker_on_another_node_works_through_the_gateway(
    here: GatewayHere, tmp_path: Path
) -> None:
    coordinators = RayTransport({}, tmp_path)
    cfg = {"address": "10.0.0.1:6379", "digest": "sha256", "max_payload_bytes": 1 << 20}
    workers = FarTransport(cfg, tmp_path)
    end, listener = coordinators.master_end(), Recorder(threading.Condition(), 5.0)
    try:
        end.open(listener)
        worker = workers.slave_end("ray://1f2e/run")
        worker.join(WorkerInfo("w", "collector"), 10.0)
        worker.renew(7)
        end.send("w", 1, TaskMessage("t", {}))
        task = worker.next_task(10.0)
        assert task is not None
        assert task.task_id == "t"
        store, policies = workers.data_store(), workers.policy_store()
        batch = SampleBatch({"obs": np.arange(3)})
        info = store.put("a", batch)
        assert info is not None
        assert info.digest.startswith("sha256:")
        assert coordinators.data_store().get("a", 0.0) == batch
        with pytest.raises(ConfigError, match=f"at most {1 << 20}"):
            store.put("b", SampleBatch({"obs": np.zeros(1 << 20, np.uint8)}))
        policies.publish("p", {"w": np.zeros(1)}, 3)
        found = coordinators.policy_store().newest("p")
        assert found is not None
        assert found[0] == 3
        assert workers.slave_end("ray://1f2e/run") is not worker
        worker.close()
        # Joins and requests for tasks wait, other calls do not.
        waiting = {waits for method, waits in here.called if method == "request"}
        assert waiting == {True, False}
        workers.close()
        for call in (lambda: store.put("c", batch), lambda: policies.discard("p")):
            with pytest.raises(ClosedError):
                call()
    finally:
        workers.close()
        coordinators.close()
    assert listener.kinds("w")[0] == "joined"
    assert set(listener.kinds("w")[1:]) == {"renewed", "left"}
    assert listener.of("renewed", "w") == [7]


def test_coordinator_whose_gateway_does_not_start_closes_its_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def open_gateway(*given: Any) -> Any:
        raise RuntimeError("no actor can be started")

    monkeypatch.setattr(RayTransport, "open_gateway", open_gateway)
    transport = RayTransport({"address": "auto"}, tmp_path)
    threads = set(threading.enumerate())
    try:
        with pytest.raises(RuntimeError, match="no actor can be started"):
            transport.master_end().open(Recorder(threading.Condition(), 5.0))
        assert not (transport.data_dir / "socket").exists()
    finally:
        transport.close()
        transport.remove_data()
    assert set(threading.enumerate()) <= threads


def test_cluster_is_joined_once_and_left_at_the_close(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("dingsdk_ray.cluster.connect", lambda *_, **__: calls.append("join"))
    monkeypatch.setattr("dingsdk_ray.cluster.disconnect", lambda: calls.append("leave"))
    transport = RayTransport({"address": "auto"}, tmp_path)
    for _ in range(2):
        transport._connect()
    for _ in range(2):
        transport.close()
    assert calls == ["join", "leave"]
