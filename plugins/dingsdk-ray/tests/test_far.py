"""Workers on other nodes than the coordinator, with a gateway that the test answers for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from dingsdk_ray import cluster
from dingsdk_ray.far import (
    UNSENT_BYTES,
    FarDataStore,
    FarPolicyStore,
    GatewayCalls,
    GatewayGoneError,
)
from dingsdk_ray.frames import POLICY
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.data_store import SharedDataStore

from dingsdk import SampleBatch
from dingsdk.data import decode_batch, decode_frame
from dingsdk.errors import (
    ClosedError,
    DataMissingError,
    StorageFullError,
)


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
