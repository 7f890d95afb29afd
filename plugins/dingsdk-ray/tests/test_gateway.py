"""The gateway of a run, tested in this process."""

from __future__ import annotations

import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_ray.frames import POLICY, joined
from dingsdk_ray.gateway import QUICK_CALLS, WAITING_CALLS, Gateway, start_gateway
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.run_memory import is_held

from dingsdk import SampleBatch
from dingsdk.data import decode_batch, decode_frame, encode_batch, encode_frame
from dingsdk.pipeline.run_folder import held
from dingsdk.worker.comm.requests import LinkError

from .conftest import UnwatchedGateway


def test_gateway_knows_whether_its_run_is_under_way(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "absent")
    assert not is_held(tmp_path)
    with held(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_gateway_without_a_coordinator_says_so_and_serves_payloads(tmp_path: Path) -> None:
    """This is the state of a resumed run before the next coordinator has opened."""
    gateway = UnwatchedGateway(RayTransport, {}, tmp_path)
    try:
        with pytest.raises(LinkError, match="no coordinator has opened yet"):
            gateway.request("/join", b"{}", 5.0)
        batch = SampleBatch({"obs": np.arange(3)})
        buffers, info = encode_batch(batch)
        gateway.put({"p0": joined(buffers, info.size_bytes)})
        assert (gateway.count(), gateway.has("p0", 0.0), gateway.has("p1", 0.0)) == (1, True, False)
        assert decode_batch(memoryview(gateway.get("p0", info.digest, 0.0))) == batch
        gateway.delete(["p0"])
        assert gateway.count() == 0
    finally:
        gateway._transport.close()
        gateway._transport.remove_data()


class Reference:
    """A reference to an object in Ray's store; the object exists as long as the reference."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame


def test_gateway_stores_a_version_once_and_releases_it_when_the_policy_is_discarded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored: list[weakref.ref[Reference]] = []

    def put(frame: Any) -> Reference:
        made = Reference(frame)
        stored.append(weakref.ref(made))
        return made

    def newest(newer_than: int | None = None) -> Any:
        found = gateway.newest("p", newer_than)
        if found is None:
            return None
        version, (reference,) = found
        frame = memoryview(reference.frame)
        return version, decode_frame(POLICY, frame, max_bytes=len(frame))["w"].tolist()

    def publish(version: int) -> None:
        buffers, info = encode_frame(POLICY, {"w": torch.full((2,), float(version))})
        gateway.publish("p", version, joined(buffers, info.size_bytes))

    monkeypatch.setattr("ray.put", put)
    gateway = UnwatchedGateway(RayTransport, {}, tmp_path)
    other = RayTransport({}, tmp_path)
    try:
        assert newest() is None
        publish(3)
        for _ in range(2):
            assert (newest(), newest(2), newest(3)) == ((3, [3.0, 3.0]), (3, [3.0, 3.0]), None)
        assert len(stored) == 1
        publish(4)
        assert newest(3) == (4, [4.0, 4.0])
        assert [each() is None for each in stored] == [True, False]
        gateway.discard("p")
        assert stored[1]() is None
        publish(1)
        assert newest() == (1, [1.0, 1.0])
        other.policy_store().discard("p")  # the coordinator discards the policy
        assert newest() is None
        assert stored[2]() is None
    finally:
        other.close()
        gateway._transport.close()
        gateway._transport.remove_data()


def test_gateway_keeps_the_connections_that_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway = UnwatchedGateway(RayTransport, {}, tmp_path)
    made: list[Any] = []
    broken = [False, False, True, False]
    posted: list[tuple[Any, ...]] = []

    def post(target: str, body: bytes, key: str, deadline: float) -> str:
        posted.append((target, body, key))
        assert 4.0 < deadline - time.monotonic() <= 5.0
        if broken[len(posted) - 1]:
            raise LinkError("cut off")
        return "answer"

    def connection() -> Any:
        made.append(SimpleNamespace(post=post))
        return made[-1]

    fake: Any = SimpleNamespace(secret=lambda: "key", connection=connection)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(gateway, "_transport", fake)
            for is_broken in broken:
                if is_broken:
                    with pytest.raises(LinkError):
                        gateway.request("/turn", b"{}", 5.0)
                else:
                    assert gateway.request("/turn", b"{}", 5.0) == "answer"
        assert posted == [("/turn", b"{}", "key")] * 4
        assert (len(made), gateway._idle) == (2, made[1:])
    finally:
        gateway._transport.close()
        gateway._transport.remove_data()


def test_gateway_ends_after_three_checks_of_an_unused_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = iter([False, False, True, False, False, True, False, False, False])
    killed: list[Any] = []
    pauses_s: list[float] = []
    patched = SimpleNamespace(Event=lambda: SimpleNamespace(wait=pauses_s.append))
    monkeypatch.setattr("dingsdk_ray.gateway.threading", patched)
    monkeypatch.setattr("dingsdk_ray.gateway.is_held", lambda run_dir: next(held))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(current_actor="me"))
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: killed.append((actor, no_restart)))
    gateway: Any = SimpleNamespace(_transport=SimpleNamespace(run_dir=tmp_path))
    Gateway._watch(gateway)
    assert (killed, list(held)) == ([("me", True)], [])
    assert pauses_s == [20.0] * 9


def test_watch_of_a_gateway_does_not_keep_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    until = threading.Event()
    monkeypatch.setattr(UnwatchedGateway, "_watch", lambda self: until.wait(20.0))
    gateway = UnwatchedGateway(RayTransport, {}, tmp_path)
    try:
        (thread,) = [each for each in threading.enumerate() if each.name == "gateway-watch"]
        assert thread.daemon
    finally:
        until.set()
        gateway._transport.close()
        gateway._transport.remove_data()
    thread.join(20.0)


def test_gateway_of_a_cluster_uses_the_memory_of_its_node(tmp_path: Path) -> None:
    section = {"address": "10.0.0.1:6379", "digest": "sha256"}
    gateway = UnwatchedGateway(RayTransport, section, tmp_path)
    try:
        assert gateway._transport.cfg.address == "local"
        assert gateway._transport.cfg.digest == "sha256"
        assert gateway._transport.connection()._path == str(gateway._transport.data_dir / "socket")
    finally:
        gateway._transport.close()
        gateway._transport.remove_data()


def test_gateway_is_one_actor_of_this_node_that_outlives_its_coordinator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    made: list[Any] = []

    def remote(**given: Any) -> Any:
        def choose(**more: Any) -> Any:
            options.update(given | more)
            return SimpleNamespace(remote=lambda *args: made.append(args) or "actor")

        return lambda cls: SimpleNamespace(options=choose)

    context = SimpleNamespace(get_node_id=lambda: "1f" * 28)
    monkeypatch.setattr("ray.remote", remote)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    assert start_gateway("run", RayTransport, {"a": 1}, tmp_path) == "actor"
    assert made == [(RayTransport, {"a": 1}, tmp_path)]
    strategy = options.pop("scheduling_strategy")
    assert (strategy.node_id, strategy.soft) == ("1f" * 28, False)
    assert options == {
        "name": "run",
        "namespace": "dingsdk",
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "concurrency_groups": {"waits": WAITING_CALLS},
        "max_concurrency": QUICK_CALLS,
    }
