"""What does not need a cluster: addresses, sections and frames."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dingsdk_ray import cluster
from dingsdk_ray.far import (
    FarDataStore,
    GatewayCalls,
    LateDataStore,
    LatePolicyStore,
)
from dingsdk_ray.frames import SMALL_BYTES, joined
from dingsdk_ray.transport import RayTransport, parse_address

from dingsdk.errors import (
    ConfigError,
)
from dingsdk.pipeline.train import compile_run


@pytest.mark.parametrize(
    "address",
    ["", "memory", "http://h:1/a", "ray://", "ray://1f", "ray:///a", "ray://1f/a/b", "ray://1:2/a"],
)
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        parse_address(address)


def test_address_has_node_and_name() -> None:
    assert parse_address("ray://1f2e/dingsdk-0-1f") == ("1f2e", "dingsdk-0-1f")


def test_resources_of_an_unknown_role_are_refused() -> None:
    sets = ["system.transport.resources.colector.num_cpus=1"]
    with pytest.raises(ConfigError, match="collector"):
        compile_run("cartpole-dqn", "parallel", "ray", sets)


def test_coordinator_of_a_local_ray_is_reached_by_its_socket(tmp_path: Path) -> None:
    transport = RayTransport({}, tmp_path)
    with pytest.raises(ConfigError, match="in a cluster"):
        transport.slave_end("ray://1f2e/dingsdk-0-1f2e")
    transport.close()
    transport.remove_data()


@pytest.mark.parametrize("size", [0, SMALL_BYTES, SMALL_BYTES + 1])
def test_frames_are_bytes_or_arrays_by_their_size(size: int) -> None:
    parts = [bytes([1]) * (size // 2), memoryview(bytes([2]) * (size - size // 2))]
    frame = joined(parts, size)
    assert isinstance(frame, bytes) == (size <= SMALL_BYTES)
    assert bytes(frame) == b"".join(parts)


def test_section_is_read_with_resources_by_role(tmp_path: Path) -> None:
    cfg = {"resources": {"learner": {"num_cpus": 2, "num_gpus": 1}}, "placement": "SPREAD"}
    section = RayTransport({**cfg}, tmp_path).cfg
    assert section.resources["learner"]["num_gpus"] == 1
    with pytest.raises(ConfigError, match="num_gpu"):
        RayTransport({"resources": {"learner": {"num_gpu": 1}}}, tmp_path)


@pytest.mark.parametrize(("address", "is_late"), [("local", False), ("10.0.0.1:6379", True)])
def test_stores_of_a_cluster_are_found_when_the_node_is_known(
    tmp_path: Path, address: str, is_late: bool
) -> None:
    transport = RayTransport({"address": address}, tmp_path)
    try:
        assert isinstance(transport.data_store(), LateDataStore) == is_late
        assert isinstance(transport.policy_store(), LatePolicyStore) == is_late
    finally:
        transport.close()
        transport.remove_data()


def test_worker_on_another_node_has_one_store_for_its_payloads(tmp_path: Path) -> None:
    transport = RayTransport({"address": "auto"}, tmp_path)
    transport._far = GatewayCalls("run")
    found = transport._find_data_store()
    assert isinstance(found, FarDataStore)
    assert transport._find_data_store() is found
    transport.close()


def test_cluster_is_joined_once_with_room_for_all_workers_and_left_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    joined: list[tuple[str, Any]] = []
    left: list[int] = []
    made: list[Any] = []
    monkeypatch.setattr(
        cluster, "connect", lambda address, **given: joined.append((address, given))
    )
    monkeypatch.setattr(cluster, "disconnect", lambda: left.append(1))
    monkeypatch.setattr(
        "dingsdk_ray.workers.Workers",
        lambda *given: made.append(given) or SimpleNamespace(close=int),
    )
    section = {"resources": {"learner": {"num_cpus": 2.5}}, "start_timeout_s": 7.0}
    transport = RayTransport(section, tmp_path)
    transport.launch([("learner", "learner-0"), ("collector", "collector-0")])
    transport._connect()
    ((address, options),) = joined
    assert (address, options["num_cpus"], options["shows_logs"]) == ("local", 3.5, True)
    ((demands, placement, timeout_s),) = made
    assert [(name, each["num_cpus"]) for name, each in demands] == [
        ("learner-0", 2.5),
        ("collector-0", 1.0),
    ]
    assert (placement, timeout_s) == ("", 7.0)
    for _ in range(2):
        transport.close()
    assert left == [1]
    transport.remove_data()
