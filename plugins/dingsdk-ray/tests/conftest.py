"""Fixtures: one local Ray per test file, and transports as on two of its nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from dingsdk_ray import cluster
from dingsdk_ray.gateway import Gateway
from dingsdk_ray.gateway_client import GatewayCalls
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.run_memory import folder_of

STORE_BYTES = 100 << 20


class FarTransport(RayTransport):
    """The transport of a worker on another node than the coordinator."""

    def is_on(self, node_id: str) -> bool:
        return False

    def find_gateway(self) -> None:
        """Find the gateway without joining the coordinator, which normally names it."""
        self._gateway_calls = GatewayCalls(folder_of(self.run_dir).name)
        self.until_close.callback(self._gateway_calls.close)


class UnwatchedGateway(Gateway):
    """A gateway in this process; it is not an actor, so it must not end itself."""

    def _watch(self) -> None:
        pass


class GatewayHere:
    """A gateway in this process instead of an actor; its calls are executed immediately."""

    def __init__(self, gateway: UnwatchedGateway) -> None:
        self.gateway = gateway
        self.called: list[tuple[str, bool]] = []

    def __getattr__(self, method: str) -> Any:
        return self.bound(method, False)

    def bound(self, method: str, waits: bool) -> Any:
        def remote(*args: Any) -> Any:
            self.called.append((method, waits))
            future: Future[Any] = Future()
            try:
                future.set_result(getattr(self.gateway, method)(*args))
            except Exception as error:
                future.set_exception(ray.exceptions.RayTaskError(method, "Traceback", error))
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(
            remote=remote, options=lambda concurrency_group: self.bound(method, True)
        )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayHere]:
    """The gateway of a run; any look-up of an actor finds it."""
    made = GatewayHere(UnwatchedGateway(RayTransport, {}, tmp_path))
    monkeypatch.setattr("ray.get_actor", lambda name, namespace: made)
    yield made
    for connection in made.gateway._idle:
        connection.close()
    made.gateway._transport.close()
    made.gateway._transport.remove_data()


# Pickle the classes by value, because actors cannot import the tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """The address of a local Ray started by this process."""
    address = cluster.connect("local", num_cpus=8, object_store_bytes=STORE_BYTES)
    yield address
    cluster.disconnect()


@pytest.fixture
def near(ray_address: str, tmp_path: Path) -> Iterator[RayTransport]:
    """The coordinator's transport."""
    made = RayTransport({"address": ray_address}, tmp_path)
    yield made
    made.close()
    made.remove_data()


@pytest.fixture
def far(near: RayTransport) -> Iterator[FarTransport]:
    """The transport of a worker on another node."""
    made = FarTransport({"address": near.cfg.address, "lost_after_s": 60.0}, near.run_dir)
    yield made
    made.close()


@pytest.fixture
def far_class() -> type[FarTransport]:
    return FarTransport
