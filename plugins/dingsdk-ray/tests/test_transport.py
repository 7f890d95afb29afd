"""What does not need a cluster: addresses, versions, sections and frames."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from dingsdk_ray import cluster
from dingsdk_ray.far import (
    UNSENT_BYTES,
    FarDataStore,
    FarPolicyStore,
    GatewayCalls,
    GatewayGoneError,
    LateDataStore,
    LatePolicyStore,
)
from dingsdk_ray.frames import POLICY, SMALL_BYTES, joined
from dingsdk_ray.gateway import Gateway
from dingsdk_ray.transport import RayTransport, parse_address
from dingsdk_ray.workers import KILLED, RayWorker, Workers
from dingsdk_shared_memory.data_store import SharedDataStore
from dingsdk_shared_memory.run_memory import is_held

from dingsdk import SampleBatch
from dingsdk.data import decode_batch, decode_frame, encode_batch, encode_frame
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    DataMissingError,
    InsecureBindError,
    PluginNotInstalledError,
    StorageFullError,
)
from dingsdk.pipeline.run_folder import held
from dingsdk.pipeline.train import compile_run
from dingsdk.worker.comm.requests import LinkError


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
    with pytest.raises(PluginNotInstalledError):
        cluster.connect("local")


def test_ray_that_does_not_start_in_time_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, str] = {}

    def init(**options: Any) -> None:
        seen.update(os.environ)
        raise Exception("The current node timed out during startup.\nSome of the raylet failed")

    environ = dict(os.environ)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ConfigError, match="'local': The current node timed out during") as caught:
        cluster.connect("local")
    assert "\n" not in str(caught.value)
    # Only those who know a token may come in, and a Ray that is killed is missed soon.
    assert seen["RAY_AUTH_MODE"] == "token"
    assert len(seen["RAY_AUTH_TOKEN"]) == 64
    assert seen["RAY_gcs_rpc_server_reconnect_timeout_s"] == "10"
    assert dict(os.environ) == environ


def serve(sock: socket.socket, answer: bytes | None, until: threading.Event) -> None:
    """Answer the first words on each connection; None: never."""
    sock.settimeout(0.05)
    with contextlib.ExitStack() as opened:
        while not until.is_set():
            with contextlib.suppress(TimeoutError):
                connection = opened.enter_context(sock.accept()[0])
                connection.settimeout(5.0)
                connection.recv(64)
                if answer is not None:
                    connection.sendall(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("closed", "refused"),
        (None, "timed out"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no GCS"),
    ],
    ids=["nobody", "mute", "another server"],
)
def test_cluster_that_does_not_answer_is_told_before_ray_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, answer: Any, why: str
) -> None:
    def init(**options: Any) -> None:
        raise AssertionError("Ray was asked to join")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    environ = dict(os.environ)
    until = threading.Event()
    with socket.socket() as sock:
        # As Ray resolves 127.0.0.1 to the address of its node.
        sock.bind(("0.0.0.0", 0))
        if answer != "closed":
            sock.listen()
            thread = threading.Thread(target=serve, args=(sock, answer, until))
            thread.start()
        try:
            with pytest.raises(ConfigError, match=f"did not answer as a GCS.*{why}"):
                cluster.connect(f"127.0.0.1:{sock.getsockname()[1]}")
        finally:
            until.set()
            if answer != "closed":
                thread.join(10.0)
    assert dict(os.environ) == environ


@pytest.mark.parametrize("address", ["10.0.0.1", "head:a", "head:6379/", "ray://head:10001"])
def test_address_of_a_cluster_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(cluster, "REACH_S", 0.5)
    with pytest.raises(ConfigError, match=f"no Ray cluster at .*{address}"):
        cluster.connect(address, allow_insecure=True)


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head:6379"])
def test_cluster_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InsecureBindError, match="allow_insecure_ray"):
        cluster.check_tokens(address, allow_insecure=False)
    with pytest.raises(InsecureBindError, match="allow_insecure_ray"):
        cluster.connect(address)
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


class UnwatchedGateway(Gateway):
    """A gateway of this process, which is no actor that could be ended."""

    def _watch(self) -> None:
        pass


def test_gateway_without_a_coordinator_says_so_and_serves_payloads(tmp_path: Path) -> None:
    """Of a run that is resumed, before the next coordinator has opened."""
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
    """Of an object in Ray's store, which keeps it as long as this is there."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame


def test_gateway_stores_a_version_once_and_lets_it_go_when_the_policy_is_discarded(
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
        other.policy_store().discard("p")  # of the coordinator
        assert newest() is None
        assert stored[2]() is None
    finally:
        other.close()
        gateway._transport.close()
        gateway._transport.remove_data()


class CallsOfOneProcess:
    """Passes calls of a gateway to a store of this process."""

    def __init__(self, store: SharedDataStore) -> None:
        self.store, self.count = store, 0

    def insist(self, method: str, frames: Any, **limits: Any) -> None:
        assert method == "put"
        self.count += 1
        for name, frame in frames.items():
            self.store.put(name, decode_batch(memoryview(frame)))


def test_payloads_that_found_no_room_together_are_stored_by_the_next_flush(tmp_path: Path) -> None:
    transports = [RayTransport({"min_free_bytes": free}, tmp_path) for free in (10**15, 0)]
    full, roomy = (each.data_store() for each in transports)
    calls: Any = CallsOfOneProcess(full)
    store = FarDataStore(calls, 1.0)
    batches = {f"p{n}": SampleBatch({"obs": np.full(8, n)}) for n in range(3)}
    try:
        for name in ("p0", "p1"):
            store.put_soon(name, batches[name])
        with pytest.raises(StorageFullError):
            store.flush()
        infos = {"p2": store.put_soon("p2", batches["p2"])}
        assert (calls.count, len(roomy)) == (1, 0)
        calls.store = roomy
        store.flush()
        store.flush()
        assert (calls.count, len(roomy)) == (2, 3)
        for name, batch in batches.items():
            assert roomy.get(name, 0.0) == batch
        assert roomy.get_verified("p2", infos["p2"].digest, 0.0) == batches["p2"]
        large = SampleBatch({"obs": np.zeros(UNSENT_BYTES, np.uint8)})
        for name in ("q0", "q1"):
            store.put_soon(name, large)
        assert (calls.count, roomy.has("q0", 0.0), roomy.has("q1", 0.0)) == (3, True, False)
    finally:
        for each in transports:
            each.close()
        transports[0].remove_data()


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


class Actor:
    """An actor whose methods are answered by the test: ``futures`` has those that were called."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[Any] = []
        self.called = threading.Semaphore(0)

    def __getattr__(self, method: str) -> Any:
        return self.bound(method, "")

    def bound(self, method: str, group: str) -> Any:
        def remote(*args: Any) -> Any:
            future: Future[Any] = Future()
            self.futures.append(future)
            self.calls.append((method, *args, group) if group else (method, *args))
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
            self.called.release()
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(
            remote=remote, options=lambda concurrency_group: self.bound(method, concurrency_group)
        )


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    """The gateways that are found, one after the other; the last one at the end."""
    found: list[Actor] = []

    def get_actor(name: str, namespace: str) -> Actor:
        assert (name, namespace) == ("run", cluster.NAMESPACE)
        found.append(Actor())
        return found[-1]

    monkeypatch.setattr("ray.get_actor", get_actor)
    return found


def answering(calls: GatewayCalls, actors: list[Actor], *answers: Any) -> Actor:
    """Return the gateway, which gives these answers to the next calls."""
    calls._actor = calls._actor or ray.get_actor("run", namespace=cluster.NAMESPACE)
    actors[-1].answers += answers
    return actors[-1]


def test_gateway_that_died_is_looked_up_again_and_one_that_is_late_is_not(
    actors: list[Actor],
) -> None:
    calls = GatewayCalls("run")
    answering(calls, actors, 1)
    assert calls.call("count", timeout_s=5.0) == 1
    with pytest.raises(GatewayGoneError, match="did not answer count in time"):
        calls.call("count", timeout_s=0.0)
    answering(calls, actors, ray.exceptions.ActorUnavailableError("busy", None))
    with pytest.raises(GatewayGoneError, match="count: "):
        calls.call("count", timeout_s=5.0)
    assert len(actors) == 1
    answering(calls, actors, ray.exceptions.ActorDiedError())
    with pytest.raises(GatewayGoneError):
        calls.call("count", timeout_s=5.0)
    assert calls._actor is None
    answering(calls, actors, 2)
    assert calls.call("get", "p0", None, timeout_s=5.0, waits=True) == 2
    assert len(actors) == 2
    assert actors[1].calls == [("get", "p0", None, "waits")]
    assert calls._waits == {}


def test_error_of_a_call_is_that_of_the_gateway_where_dingsdk_raised_it(
    actors: list[Actor],
) -> None:
    calls = GatewayCalls("run")
    missing = DataMissingError("no payload 'p'", data_id="p")
    answering(calls, actors, ray.exceptions.RayTaskError("get", "Traceback", missing))
    with pytest.raises(DataMissingError) as caught:
        calls.call("get", timeout_s=5.0)
    assert caught.value is missing
    defect = ray.exceptions.RayTaskError("get", "Traceback", KeyError("p"))
    answering(calls, actors, defect)
    with pytest.raises(ray.exceptions.RayTaskError) as failed:
        calls.call("get", timeout_s=5.0)
    assert failed.value is defect


def test_gateway_is_asked_again_until_the_time_is_over(
    actors: list[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_ray.far._RETRY_S", 0.01)
    calls = GatewayCalls("run")
    gone = ray.exceptions.ActorUnavailableError("busy", None)
    gateway = answering(calls, actors, gone, gone, 3)
    assert calls.insist("delete", ["p0"], timeout_s=30.0) == 3
    assert gateway.calls == [("delete", ["p0"])] * 3
    answering(calls, actors, gone, 4)
    with pytest.raises(GatewayGoneError):
        calls.insist("count", timeout_s=0.0)


def test_calls_under_way_end_for_the_one_that_cancels_and_all_with_the_close(
    actors: list[Actor],
) -> None:
    calls, mine, ended = GatewayCalls("run"), object(), list[tuple[str, str]]()
    gateway = answering(calls, actors)

    def wait(name: str, owner: object) -> None:
        try:
            calls.call(name, timeout_s=60.0, owner=owner)
        except (GatewayGoneError, ClosedError) as error:
            ended.append((name, type(error).__name__))

    threads = [
        threading.Thread(target=wait, args=each) for each in (("mine", mine), ("other", object()))
    ]
    for thread in threads:
        thread.start()
        assert gateway.called.acquire(timeout=20.0)
    calls.cancel(mine)
    threads[0].join(20.0)
    assert ended == [("mine", "GatewayGoneError")]
    calls.close()
    threads[1].join(20.0)
    assert ended[1:] == [("other", "ClosedError")]
    with pytest.raises(ClosedError):
        calls.call("count", timeout_s=1.0)


class ScriptedCalls:
    """Answers calls of a gateway in order, and notes how long they may take."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def call(self, method: str, *args: Any, timeout_s: float, waits: bool) -> Any:
        self.asked.append((method, *args, timeout_s, waits))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_payload_that_is_not_there_is_asked_for_until_the_deadline_a_while_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("dingsdk_ray.far.time", SimpleNamespace(monotonic=lambda: now[0]))
    missing = DataMissingError("no payload", data_id="p0")

    class Slow(ScriptedCalls):
        def call(self, method: str, *args: Any, timeout_s: float, waits: bool) -> Any:
            now[0] += args[-1]
            return super().call(method, *args, timeout_s=timeout_s, waits=waits)

    calls: Any = Slow(False, False, False)
    assert not FarDataStore(calls, 7.0).has("p0", 12.0)
    assert calls.asked == [
        ("has", "p0", 5.0, 12.0, True),
        ("has", "p0", 5.0, 12.0, True),
        ("has", "p0", 2.0, 9.0, True),
    ]
    calls = Slow(missing, missing)
    with pytest.raises(DataMissingError):
        FarDataStore(calls, 7.0).get("p0", 8.0)
    assert [each[3:] for each in calls.asked] == [(5.0, 12.0, True), (3.0, 10.0, True)]
    calls = Slow(False)
    assert not FarDataStore(calls, 7.0).has("p0", 0.0)
    assert calls.asked == [("has", "p0", 0.0, 7.0, False)]
    calls = Slow(True)
    assert FarDataStore(calls, 7.0).has("p0", 12.0)
    assert len(calls.asked) == 1


def test_policy_goes_to_the_gateway_with_its_id_and_version() -> None:
    asked: list[Any] = []
    calls: Any = SimpleNamespace(insist=lambda *given, **limits: asked.append((given, limits)))
    policies = FarPolicyStore(calls, 7.0)
    policies.publish("p", {"w": np.arange(3.0)}, 5)
    ((method, policy_id, version, frame), limits) = asked.pop()
    assert (method, policy_id, version, limits) == ("publish", "p", 5, {"timeout_s": 7.0})
    assert decode_frame(POLICY, frame)["w"].tolist() == [0.0, 1.0, 2.0]
    assert policies.newest("p", 5) is None
    assert asked == [(("newest", "p", 5), {"timeout_s": 7.0})]


def noting(sent: list[list[str]]) -> Any:
    """Return calls of a gateway that takes all payloads, and note their ids."""
    return SimpleNamespace(insist=lambda method, frames, **limits: sent.append([*frames]))


def test_payloads_of_just_a_megabyte_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []
    store = FarDataStore(noting(sent), 1.0)
    rows = SampleBatch({"obs": np.zeros(100, np.uint8)})
    size = store.put_soon("p0", rows).size_bytes
    monkeypatch.setattr("dingsdk_ray.far.UNSENT_BYTES", 2 * size)
    store.put_soon("p1", rows)
    assert sent == []
    store.put_soon("p2", rows)
    assert sent == [["p0", "p1"]]


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


def test_payloads_wait_for_a_flush_until_they_are_a_megabyte(tmp_path: Path) -> None:
    sent: list[list[str]] = []
    calls = noting(sent)
    store = FarDataStore(calls, 1.0)
    rows = SampleBatch({"obs": np.zeros(UNSENT_BYTES // 2 - 4096, np.uint8)})
    size = store.put_soon("p0", rows).size_bytes
    assert UNSENT_BYTES // 4 < size <= UNSENT_BYTES // 2
    rest = UNSENT_BYTES - 2 * size
    store.put_soon("p1", rows)
    assert (sent, store._unsent_bytes) == ([], UNSENT_BYTES - rest)
    store.put_soon("p2", rows)
    assert (sent, store._unsent_bytes) == ([["p0", "p1"]], size)

    def refuse(*given: Any, **limits: Any) -> None:
        raise StorageFullError("full", path="ray", reason="object_store")

    calls.insist, insist = refuse, calls.insist
    with pytest.raises(StorageFullError):
        store.flush()
    assert store._unsent_bytes == size
    store.put_soon("p3", rows)
    calls.insist = insist
    store.put_soon("p4", rows)
    assert sent[1:] == [["p2", "p3"]]


class Refs:
    """Stands for Ray: which references are there, and what they hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: dict[str, Any] = {}
        monkeypatch.setattr("ray.wait", self.wait)
        monkeypatch.setattr("ray.get", self.get)

    def wait(self, refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return [r for r in refs if r in self.there], [r for r in refs if r not in self.there]

    def get(self, ref: str, timeout: float) -> Any:
        if isinstance(self.there[ref], BaseException):
            raise self.there[ref]
        return self.there[ref]


def started() -> RayWorker:
    run, joined = (SimpleNamespace(remote=lambda *given, n=name: n) for name in ("run", "joined"))
    spec: Any = None
    return RayWorker(SimpleNamespace(run=run, wait_joined=joined), spec)


def test_worker_tells_once_that_it_joined_and_once_why_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refs, worker = Refs(monkeypatch), started()
    assert (list(worker.messages()), worker.exit_code) == ([], None)
    refs.there["joined"] = None
    assert [list(worker.messages()) for _ in "12"] == [[{"event": "joined"}], []]
    end = {"code": 1, "event": "failed", "text": "it broke"}
    refs.there["run"] = end
    assert [list(worker.messages()) for _ in "12"] == [[end], []]
    assert worker.exit_code == 1

    early = started()  # it never joined
    assert (list(early.messages()), early.exit_code) == ([end], 1)
    refs.there["run"] = {"code": 0}
    assert (list(started().messages()), started().exit_code) == ([], 0)


@pytest.mark.parametrize("has_room", [False, True])
def test_actor_that_died_is_a_killed_worker(
    monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    refs, worker = Refs(monkeypatch), started()
    error = ray.exceptions.ActorDiedError() if has_room else ray.exceptions.OutOfMemoryError("x")
    refs.there["run"] = error
    assert worker.exit_code == KILLED
    (message,) = worker.messages()
    assert message["event"] == "failed"
    assert message["text"].startswith("its actor died" if has_room else "out of memory")


def test_first_worker_of_each_role_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0, "GPU": 1.0})

    def demand(cpus: float, gpus: float = 0.0) -> dict[str, Any]:
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": {}}

    roles = [("learner-0", demand(2.0, 1.0)), ("collector-0", demand(1.0))]
    Workers([*roles, ("collector-1", demand(1.0))], "", 1.0)
    with pytest.raises(ConfigError, match="no room for evaluator-0, which takes"):
        Workers([*roles, ("evaluator-0", demand(0.5))], "", 1.0)
    with pytest.raises(ConfigError, match=r"1 disk .*3 CPU, 1 GPU is free"):
        Workers([("learner-0", {**demand(1.0), "resources": {"disk": 1.0}})], "", 1.0)


def test_worker_gets_what_its_role_takes_and_no_cpu_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[dict[str, Any]] = []

    class Remote:
        def options(self, **given: Any) -> Any:
            chosen.append(given)
            run = SimpleNamespace(remote=lambda *given: "ref")
            return SimpleNamespace(remote=lambda: SimpleNamespace(run=run, wait_joined=run))

    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr("ray.remote", lambda **given: lambda cls: Remote())
    demand = {"num_cpus": 0.0, "num_gpus": 0.0, "resources": {}}
    workers = Workers([("a-0", demand), ("a-1", {**demand, "num_cpus": 2.0})], "", 1.0)
    for name in ("a-0", "a-1"):
        spec: Any = SimpleNamespace(worker_id=name)
        workers.start(spec)
    assert chosen == [
        {"max_concurrency": 4, "num_cpus": 0},
        {"max_concurrency": 4, "num_cpus": 2.0},
    ]


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


def test_gateway_ends_after_three_looks_at_a_folder_that_nobody_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = iter([True, False, False, True, False, False, False])
    killed: list[Any] = []
    monkeypatch.setattr("dingsdk_ray.gateway.LOOK_S", 0.0)
    monkeypatch.setattr("dingsdk_ray.gateway.is_held", lambda run_dir: next(held))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(current_actor="me"))
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: killed.append((actor, no_restart)))
    gateway: Any = SimpleNamespace(_transport=SimpleNamespace(run_dir=tmp_path))
    Gateway._watch(gateway)
    assert (killed, list(held)) == ([("me", True)], [])


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


def test_ray_is_stopped_with_its_last_user_and_the_environment_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[int] = []
    monkeypatch.setattr("ray.shutdown", lambda: stopped.append(1))
    monkeypatch.setattr(cluster, "_users", 2)
    monkeypatch.setattr(cluster, "_started", {"RAY_A": None, "RAY_B": "before"})
    monkeypatch.setenv("RAY_A", "during")
    monkeypatch.setenv("RAY_B", "during")
    cluster.disconnect()
    assert (stopped, os.environ["RAY_A"]) == ([], "during")
    cluster.disconnect()
    assert (stopped, cluster._started) == ([1], None)
    assert ("RAY_A" in os.environ, os.environ["RAY_B"]) == (False, "before")
