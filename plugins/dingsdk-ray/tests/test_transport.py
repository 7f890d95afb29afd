"""What does not need a cluster: addresses, versions, ids, and the hub without Ray."""

from __future__ import annotations

import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dingsdk_ray import cluster
from dingsdk_ray.hub import INLINE_BYTES, Hub
from dingsdk_ray.transport import RayTransport, _run_id, parse_address

from dingsdk.errors import ConfigError, InsecureBindError, PluginNotInstalledError
from dingsdk.pipeline.train import compile_run


@pytest.mark.parametrize(
    "address", ["", "memory", "http://h:1/a/b", "h:1", "h:1/a", "h:x/a/b", "h:1/a/b/c", ":1/a/b"]
)
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        parse_address(address)


def test_address_has_cluster_namespace_and_run() -> None:
    assert parse_address("[::1]:6379/ns/run") == ("[::1]:6379", "ns", "run")


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


def test_processes_that_start_at_once_agree_on_the_run(tmp_path: Path) -> None:
    found: list[str] = []
    start = threading.Barrier(8)

    def draw() -> None:
        start.wait()
        found.append(_run_id(tmp_path / "transport"))

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "transport").iterdir()] == ["ray-run"]


def test_hub_keeps_small_frames_and_stores_large_ones() -> None:
    stored: list[Any] = []
    hub = Hub("run", store=lambda frame: stored.append(frame) or "reference")
    hub.put("small", "d", b"x" * INLINE_BYTES)
    hub.put("large", "d", np.zeros(INLINE_BYTES + 1, np.uint8))
    assert hub.get("small", 0.0) == (b"x" * INLINE_BYTES,)
    assert hub.get("large", 0.0) == ("reference",)
    assert len(stored) == 1


def test_hub_applies_a_repeated_call_once_and_refuses_an_earlier_coordinator() -> None:
    hub = Hub("run")
    epoch = hub.open(5.0)
    assert hub.apply(epoch, 1, [])
    assert hub.apply(epoch, 1, [("send", "w0", 1, "t1", b"malformed")])  # skipped: it was done
    later = hub.open(5.0)
    assert later > epoch
    assert not hub.apply(epoch, 2, [])
    assert hub.events(epoch, 0, 0.0) is None
    assert hub.events(later, 0, 0.0) == []


def test_section_is_read_with_resources_by_role(tmp_path: Path) -> None:
    cfg = {"resources": {"learner": {"num_cpus": 2, "num_gpus": 1}}, "placement": "SPREAD"}
    section = RayTransport({**cfg}, tmp_path).cfg
    assert section.resources["learner"]["num_gpus"] == 1
    with pytest.raises(ConfigError, match="num_gpu"):
        RayTransport({"resources": {"learner": {"num_gpu": 1}}}, tmp_path)
