"""Workers on other nodes than the coordinator, with a fake gateway."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from dingsdk_ray.gateway_client import (
    SMALL_BYTES,
    GatewayCalls,
    GatewayDataStore,
    GatewayPolicyStore,
)

from dingsdk import SampleBatch
from dingsdk.errors import (
    ClosedError,
    DataCorruptError,
    DataMissingError,
    StorageFullError,
    WorkerLostError,
)

from .conftest import GatewayHere

BATCH = SampleBatch({"obs": np.arange(3)})


def test_small_payloads_are_stored_together_by_the_first_flush_that_finds_room(
    here: GatewayHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(frames: Any) -> None:
        raise StorageFullError("full", path="memory", reason="ENOSPC")

    store = GatewayDataStore(GatewayCalls("run"), 5.0)
    for name in "ab":
        store.put_soon(name, BATCH)
    store.put_soon("large", SampleBatch({"obs": np.zeros(SMALL_BYTES, np.uint8)}))
    assert len(store) == 1
    with monkeypatch.context() as patch:
        patch.setattr(here.gateway, "put", refuse)
        with pytest.raises(StorageFullError):
            store.flush()
    for _ in range(2):
        store.flush()
    assert [method for method, _ in here.called].count("put") == 3
    assert len(store) == 3
    assert store.get("b", 0.0) == BATCH


def test_damaged_payload_is_named_and_deleted(here: GatewayHere) -> None:
    store = GatewayDataStore(GatewayCalls("run"), 5.0)
    info = store.put("a", BATCH)
    with pytest.raises(DataCorruptError, match=r"^payload 'a': ") as caught:
        store.get("a", 0.0, info.digest[:-1] + "x")
    assert caught.value.facts["data_id"] == "a"
    assert (store.has("a", 0.0), store.corrupt_count) == (False, 1)


def test_next_gateway_is_used_after_one_has_died(
    here: GatewayHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise ray.exceptions.ActorDiedError

    gateways = [SimpleNamespace(count=SimpleNamespace(remote=die)), here]
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: gateways.pop(0))
    assert len(GatewayDataStore(GatewayCalls("run"), 5.0)) == 0


@pytest.mark.parametrize("error", ["ObjectStoreFullError", "OutOfDiskError"])
def test_full_object_store_is_named(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    def refuse(frames: Any) -> None:
        raise getattr(ray.exceptions, error)("full")

    gateway = SimpleNamespace(put=SimpleNamespace(remote=refuse))
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: gateway)
    with pytest.raises(StorageFullError, match="object store is full") as caught:
        GatewayDataStore(GatewayCalls("run"), 5.0).put("a", BATCH)
    assert (caught.value.facts["path"], caught.value.facts["reason"]) == ("ray", "object_store")


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
    for _ in range(2):
        found = policies.newest("p", 3)
        assert found is not None
        assert (found[0], found[1]["w"].tolist()) == (4, [0.0, 1.0, 2.0])
    assert policies.newest("p", 4) is None
    assert kept.keys() == {"r0"}  # all readers get one object
    kept.clear()  # the object is lost with its node
    assert policies.newest("p") is None
    policies.discard("p")
    assert here.gateway._newest == {}  # which would keep the object in the store
    policies.publish("p", {"w": torch.ones(1)}, 4)
    again = policies.newest("p")
    assert again is not None
    assert (again[0], again[1]["w"].tolist()) == (4, [1.0])


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
    for call in (
        lambda: data.put("a", BATCH),
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
    with pytest.raises(DataMissingError, match=r"'a' within 0\.0 s") as missing:
        data.get("a", 0.0)
    assert missing.value.facts["data_id"] == "a"
    calls.close()
    with pytest.raises(ClosedError) as closed:
        data.put("a", BATCH)
    assert closed.value.facts["what"] == "transport"
