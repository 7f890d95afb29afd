"""Workers on other nodes than the coordinator, with a fake gateway."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from dingsdk_ray import cluster
from dingsdk_ray.gateway_client import (
    UNSENT_BYTES,
    GatewayCalls,
    GatewayDataStore,
    GatewayGoneError,
    GatewayLink,
    GatewayPolicyStore,
)
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.data_store import SharedDataStore

from dingsdk import SampleBatch
from dingsdk.data import decode_batch
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    StorageFullError,
    WorkerLostError,
)
from dingsdk.worker.comm.requests import LinkError

from .conftest import GatewayHere


class CallsOfOneProcess:
    """Forwards gateway calls to a store in this process."""

    def __init__(self, store: SharedDataStore) -> None:
        self.store, self.count = store, 0

    def insist(self, method: str, frames: Any, **limits: Any) -> None:
        assert method == "put"
        self.count += 1
        for name, frame in frames.items():
            self.store.put(name, decode_batch(memoryview(frame)))


def test_payloads_of_a_failed_flush_are_stored_by_the_next_flush(tmp_path: Path) -> None:
    transports = [RayTransport({"min_free_bytes": free}, tmp_path) for free in (10**15, 0)]
    full, roomy = (each.data_store() for each in transports)
    calls: Any = CallsOfOneProcess(full)
    store = GatewayDataStore(calls, 1.0)
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


class Actor:
    """An actor whose calls are answered by the test; ``futures`` holds the pending calls."""

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
    """The gateways found so far; each look-up creates a new one."""
    found: list[Actor] = []

    def get_actor(name: str, namespace: str) -> Actor:
        assert (name, namespace) == ("run", cluster.NAMESPACE)
        found.append(Actor())
        return found[-1]

    monkeypatch.setattr("ray.get_actor", get_actor)
    return found


def answering(calls: GatewayCalls, actors: list[Actor], *answers: Any) -> Actor:
    """Return the gateway, prepared to give these answers to the next calls."""
    calls._actor = calls._actor or ray.get_actor("run", namespace=cluster.NAMESPACE)
    actors[-1].answers += answers
    return actors[-1]


def test_dead_gateway_is_looked_up_again_but_a_slow_one_is_not(
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


def test_dingsdk_error_in_the_gateway_is_raised_by_the_call(
    actors: list[Actor],
) -> None:
    calls = GatewayCalls("run")
    for error in (DataMissingError("no payload 'p'", data_id="p"), LinkError("cut off")):
        answering(calls, actors, ray.exceptions.RayTaskError("get", "Traceback", error))
        with pytest.raises(type(error)) as caught:
            calls.call("get", timeout_s=5.0)
        assert caught.value is error
    defect = ray.exceptions.RayTaskError("get", "Traceback", KeyError("p"))
    answering(calls, actors, defect)
    with pytest.raises(ray.exceptions.RayTaskError) as failed:
        calls.call("get", timeout_s=5.0)
    assert failed.value is defect


def test_gateway_is_asked_again_until_the_time_is_over(
    actors: list[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_ray.gateway_client._RETRY_S", 0.01)
    calls = GatewayCalls("run")
    gone = ray.exceptions.ActorUnavailableError("busy", None)
    gateway = answering(calls, actors, gone, gone, 3)
    assert calls.insist("delete", ["p0"], timeout_s=30.0) == 3
    assert gateway.calls == [("delete", ["p0"])] * 3
    answering(calls, actors, gone, 4)
    with pytest.raises(GatewayGoneError):
        calls.insist("count", timeout_s=0.0)


def test_cancel_ends_the_calls_of_one_owner_and_close_ends_all_calls(
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
    assert [done.is_set() for done in calls._waits] == [False]
    calls.close()
    threads[1].join(20.0)
    assert ended[1:] == [("other", "ClosedError")]
    with pytest.raises(ClosedError):
        calls.call("count", timeout_s=1.0)


def test_payloads_on_another_node_are_stored_found_and_deleted(here: GatewayHere) -> None:
    store = GatewayDataStore(GatewayCalls("run"), 5.0)
    batch, other = (SampleBatch({"obs": np.arange(n)}) for n in (3, 4))
    info = store.put("a", batch)
    assert info is not None
    assert store.put("a", batch) == info
    assert store.get("a", 0.0) == store.get_verified("a", info.digest, 0.0) == batch
    assert (store.has("a", 0.0), store.has("b", 0.0), len(store)) == (True, False, 1)
    with pytest.raises(ConflictError):
        store.put("a", other)
    with pytest.raises(DataMissingError, match="no payload 'b'"):
        store.get("b", 0.0)
    with pytest.raises(DataCorruptError, match=r"^payload 'a': ") as caught:
        store.get_verified("a", info.digest[:-1] + "x", 0.0)
    assert caught.value.facts["data_id"] == "a"
    assert isinstance(caught.value.__cause__, DataCorruptError)
    assert caught.value.where == caught.value.__cause__.where
    assert not store.has("a", 0.0)  # damaged payloads are deleted
    store.put_soon("b", other)
    store.put_soon("c", batch)
    assert len(store) == 0
    store.flush()
    assert (store.get("b", 0.0), len(store)) == (other, 2)
    store.delete(["b", "none"])
    assert (store.has("b", 0.0), store.has("c", 0.0)) == (False, True)
    # Calls that wait run in separate threads.
    assert not any(waits for _, waits in here.called)
    assert store.has("c", 5.0)
    assert here.called[-1] == ("has", True)


def test_invalid_id_is_refused_before_it_is_sent(here: GatewayHere) -> None:
    calls = GatewayCalls("run")
    data, policies = GatewayDataStore(calls, 5.0), GatewayPolicyStore(calls, 5.0)
    batch = SampleBatch({"obs": np.arange(3)})
    for call in (
        lambda: data.put("../a", batch),
        lambda: data.put_soon("../a", batch),
        lambda: data.get("../a", 0.0),
        lambda: data.has("../a", 0.0),
        lambda: data.delete(["a", "../a"]),
        lambda: policies.publish("../a", {"w": np.zeros(1)}, 1),
        lambda: policies.newest("../a"),
        lambda: policies.discard("../a"),
    ):
        with pytest.raises(ProtocolError) as caught:
            call()
        assert caught.value.facts["where"] in ("data_id", "policy_id")
    assert here.called == []


def test_put_refuses_a_payload_above_the_limit_of_readers(here: GatewayHere) -> None:
    store = GatewayDataStore(
        GatewayCalls("run"), 5.0, max_payload_bytes=1 << 10, algorithm="sha256"
    )
    info = store.put("a", SampleBatch({"obs": np.zeros(10, np.uint8)}))
    assert info.digest.startswith("sha256:")
    with pytest.raises(ConfigError, match="at most 1024"):
        store.put("b", SampleBatch({"obs": np.zeros(1 << 10, np.uint8)}))
    assert here.called == [("put", False)]


def test_newest_policy_comes_from_the_object_store_of_ray(
    here: GatewayHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}

    def get(reference: str, timeout: float) -> Any:
        assert timeout == 5.0
        if reference not in kept:
            raise ray.exceptions.ObjectLostError(reference.encode(), "", "")
        return kept[reference]

    def put(frame: Any) -> str:
        kept[f"r{len(kept)}"] = frame
        return f"r{len(kept) - 1}"

    monkeypatch.setattr("ray.put", put)
    monkeypatch.setattr("ray.get", get)
    policies = GatewayPolicyStore(GatewayCalls("run"), 5.0)
    assert policies.newest("p") is None
    policies.publish("p", {"w": torch.arange(3.0)}, 4)
    found = policies.newest("p", 3)
    assert found is not None
    assert (found[0], found[1]["w"].tolist()) == (4, [0.0, 1.0, 2.0])
    assert policies.newest("p", 4) is None
    kept.clear()  # the object is lost with its node
    assert policies.newest("p") is None
    policies.discard("p")
    policies.publish("p", {"w": torch.ones(1)}, 1)
    again = policies.newest("p")
    assert again is not None
    assert again[0] == 1


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches Ray so that the gateway is not found."""

    def get_actor(name: str, namespace: str) -> Any:
        raise ValueError(f"no actor {name}\n" + "x" * 400)

    monkeypatch.setattr("ray.get_actor", get_actor)
    monkeypatch.setattr("dingsdk_ray.gateway_client._RETRY_S", 0.01)


def test_missing_gateway_is_reported_as_a_lost_worker(gone: None) -> None:
    calls = GatewayCalls("run")
    data, policies = GatewayDataStore(calls, 0.03), GatewayPolicyStore(calls, 0.03)
    batch = SampleBatch({"obs": np.arange(3)})
    for call in (
        lambda: data.put("a", batch),
        lambda: data.delete(["a"]),
        lambda: len(data),
        lambda: policies.newest("p"),
        lambda: policies.discard("p"),
    ):
        with pytest.raises(WorkerLostError, match=r"gateway of the run.* no actor run x") as caught:
            call()
        assert caught.value.facts["worker_id"] == "gateway"
        assert "x" * 180 in str(caught.value)
        assert "x" * 200 not in str(caught.value)
    assert not data.has("a", 0.0)
    with pytest.raises(DataMissingError, match=r"'a' within 0\.0 s: get: no actor run") as missing:
        data.get("a", 0.0)
    assert missing.value.facts["data_id"] == "a"
    calls.close()
    with pytest.raises(ClosedError) as closed:
        data.put("a", batch)
    assert closed.value.facts["what"] == "transport"


@pytest.mark.parametrize("error", ["ObjectStoreFullError", "OutOfDiskError"])
def test_full_object_store_is_named(actors: list[Actor], error: str) -> None:
    calls = GatewayCalls("run")
    answering(calls, actors, getattr(ray.exceptions, error)("full"))
    with pytest.raises(StorageFullError, match="object store is full") as caught:
        calls.call("put", timeout_s=5.0)
    assert (caught.value.facts["path"], caught.value.facts["reason"]) == ("ray", "object_store")
    assert len(actors) == 1
    answering(calls, actors, 1)
    assert calls.call("count", timeout_s=5.0) == 1
    assert len(actors) == 1  # still the same gateway


class NotingCalls:
    """Gives the same answer to each call, and records the calls."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.cancelled: list[object] = []

    def call(self, *given: Any, **limits: Any) -> Any:
        self.asked.append((given, limits))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def cancel(self, owner: object) -> None:
        self.cancelled.append(owner)


@pytest.mark.parametrize(
    ("target", "waits"),
    [("/v1/join", True), ("/v1/turn", True), ("/v1/leave", False), ("turn", True)],
)
def test_request_is_sent_with_its_deadline_and_whether_it_may_wait(
    target: str, waits: bool
) -> None:
    calls: Any = NotingCalls((404, b"none"))
    link = GatewayLink(calls)
    answer = link.post(target, b"{}", True, time.monotonic() + 60.0)
    assert (answer.status, answer.body) == (404, b"none")
    ((method, sent, body, wait_s), limits) = calls.asked[0]
    assert (method, sent, body) == ("request", target, b"{}")
    assert 50.0 < wait_s <= 60.0
    assert limits == {"timeout_s": wait_s, "waits": waits, "owner": link}
    link.post(target, b"{}", True, time.monotonic() - 60.0)  # after the deadline: no waiting
    assert calls.asked[1][0][3] == 0.0


@pytest.mark.parametrize(
    "error", [GatewayGoneError("died"), ClosedError("died", what="transport")], ids=["gone", "end"]
)
def test_connection_without_an_answer_or_that_is_closed_is_a_broken_link(error: Exception) -> None:
    calls: Any = NotingCalls(error)
    link = GatewayLink(calls)
    with pytest.raises(LinkError, match="died"):
        link.post("/v1/turn", b"", True, time.monotonic() + 5.0)
    link.close()
    assert calls.cancelled == [link]
    with pytest.raises(LinkError, match="this connection is closed"):
        link.post("/v1/turn", b"", True, time.monotonic() + 5.0)
    assert len(calls.asked) == 1


class ScriptedCalls:
    """Answers gateway calls in order, and records their timeouts."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def call(self, method: str, *args: Any, timeout_s: float, waits: bool) -> Any:
        self.asked.append((method, *args, timeout_s, waits))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_missing_payload_is_requested_in_short_calls_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "dingsdk_ray.gateway_client.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    missing = DataMissingError("no payload", data_id="p0")

    class Slow(ScriptedCalls):
        def call(self, method: str, *args: Any, timeout_s: float, waits: bool) -> Any:
            now[0] += args[-1]
            return super().call(method, *args, timeout_s=timeout_s, waits=waits)

    calls: Any = Slow(False, False, False)
    assert not GatewayDataStore(calls, 7.0).has("p0", 12.0)
    assert calls.asked == [
        ("has", "p0", 5.0, 12.0, True),
        ("has", "p0", 5.0, 12.0, True),
        ("has", "p0", 2.0, 9.0, True),
    ]
    calls = Slow(missing, missing)
    with pytest.raises(DataMissingError):
        GatewayDataStore(calls, 7.0).get("p0", 8.0)
    assert [each[3:] for each in calls.asked] == [(5.0, 12.0, True), (3.0, 10.0, True)]
    calls = Slow(False)
    assert not GatewayDataStore(calls, 7.0).has("p0", 0.0)
    assert calls.asked == [("has", "p0", 0.0, 7.0, False)]
    calls = Slow(True)
    assert GatewayDataStore(calls, 7.0).has("p0", 12.0)
    assert len(calls.asked) == 1
    calls = Slow(False, missing, missing)  # the default timeout is two seconds
    store = GatewayDataStore(calls, 7.0)
    assert not store.has("p0")
    with pytest.raises(DataMissingError):
        store.get("p0")
    with pytest.raises(DataMissingError):
        store.get_verified("p0", "head:1")
    assert [each[-3:] for each in calls.asked] == [(2.0, 9.0, True)] * 3
    assert [each[:-3] for each in calls.asked] == [
        ("has", "p0"),
        ("get", "p0", None),
        ("get", "p0", "head:1"),
    ]


def noting(sent: list[list[str]]) -> Any:
    """Return fake gateway calls that accept all payloads and record their ids."""
    return SimpleNamespace(insist=lambda method, frames, **limits: sent.append([*frames]))


def test_payloads_wait_for_a_flush_until_they_are_a_megabyte(tmp_path: Path) -> None:
    sent: list[list[str]] = []
    calls = noting(sent)
    store = GatewayDataStore(calls, 1.0)
    rows = SampleBatch({"obs": np.zeros(UNSENT_BYTES // 2 - 4096, np.uint8)})
    size = store.put_soon("p0", rows).size_bytes
    assert UNSENT_BYTES // 4 < size <= UNSENT_BYTES // 2
    rest = UNSENT_BYTES - 2 * size
    store.put_soon("p1", rows)
    assert (sent, store._unsent_bytes) == ([], UNSENT_BYTES - rest)
    store.put_soon("p2", rows)
    assert (sent, store._unsent_bytes) == ([["p0", "p1"]], size)

    def refuse(*given: Any, **limits: Any) -> None:
        store.put_soon("p3", rows)  # simulates another thread
        raise StorageFullError("full", path="ray", reason="object_store")

    calls.insist, insist = refuse, calls.insist
    with pytest.raises(StorageFullError):
        store.flush()
    assert store._unsent_bytes == 2 * size
    calls.insist = insist
    store.put_soon("p4", rows)
    assert sent[1:] == [["p2", "p3"]]
