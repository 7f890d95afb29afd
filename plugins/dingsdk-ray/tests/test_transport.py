"""What does not need a cluster: addresses, versions, sections and frames."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from dingsdk_ray import cluster
from dingsdk_ray.frames import SMALL_BYTES, joined
from dingsdk_ray.transport import RayTransport, parse_address
from dingsdk_shared_memory.run_memory import is_held

from dingsdk.errors import ConfigError, InsecureBindError, PluginNotInstalledError
from dingsdk.pipeline.run_folder import held
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


@pytest.mark.parametrize("found", ["2.53.0", "1.13.0", ""])
def test_ray_that_is_old_or_absent_is_told_before_a_run_folder_is_made(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    def version(name: str) -> str:
        if name == "ray" and not found:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(cluster.importlib.metadata, "version", version)
    with pytest.raises(PluginNotInstalledError, match=r"ray >= 2\.54.*pip install"):
        cluster.check_ray()


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head:6379"])
def test_cluster_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InsecureBindError, match="allow_insecure_ray"):
        cluster.check_tokens(address, allow_insecure=False)
    cluster.check_tokens(address, allow_insecure=True)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    cluster.check_tokens(address, allow_insecure=False)


@pytest.mark.parametrize("address", ["local", "127.0.0.1:6379", "localhost:6379"])
def test_cluster_of_this_host_may_do_without_tokens(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    cluster.check_tokens(address, allow_insecure=False)


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


def test_gateway_knows_whether_its_run_is_under_way(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "absent")
    assert not is_held(tmp_path)
    with held(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


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
