"""The transport rules, for workers on other nodes than the coordinator.

Workers on its own node use the shared_memory transport, which has its own tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray
from dingsdk_ray import gateway
from dingsdk_ray.gateway import QUICK_CALLS, WAITING_CALLS, Gateway
from dingsdk_ray.transport import RayTransport
from dingsdk_shared_memory.run_memory import folder_of

from dingsdk.testing import TransportContract

pytestmark = pytest.mark.slow
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Gateways:
    """The gateways of many runs in one actor, because starting an actor takes seconds."""

    def __init__(self) -> None:
        self._made: dict[Path, Gateway] = {}
        # A gateway ends its actor a minute after its run; this actor is shared and must stay.
        gateway.LOOK_S = 1e6

    def call(self, section: Mapping[str, Any], run_dir: Path, method: str, *args: Any) -> Any:
        if method == "open":
            self._made[run_dir] = Gateway(RayTransport, section, run_dir)
            return None
        return getattr(self._made[run_dir], method)(*args)


class Actor:
    """One of the gateways, with the interface of an actor handle."""

    def __init__(self, call: Any, *first: Any) -> None:
        self._call = call
        self._first = first

    def __getattr__(self, method: str) -> Actor:
        return Actor(self._call, *self._first, method)

    def options(self, **kwargs: Any) -> Actor:
        return Actor(self._call.options(**kwargs), *self._first)

    def remote(self, *args: Any) -> Any:
        return self._call.remote(*self._first, *args)


@pytest.fixture(scope="module")
def gateways(ray_address: str) -> Actor:
    groups = {"waits": WAITING_CALLS}
    actor = ray.remote(num_cpus=0, concurrency_groups=groups)(Gateways)
    return Actor(actor.options(max_concurrency=QUICK_CALLS).remote().call)


class TestRayTransport(TransportContract):
    capabilities = RayTransport.contract_capabilities
    patience_s = 90.0  # more than lost_after_s, how long a worker waits if it misses a close

    @pytest.fixture(autouse=True)
    def _transports(
        self,
        ray_address: str,
        gateways: Actor,
        far_class: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[None]:
        actors: dict[str, Actor] = {}

        class TwoNodes(far_class):  # type: ignore[misc]
            """The first transport of a run is the coordinator's; others are on another node."""

            made: ClassVar[dict[Path, RayTransport]] = {}

            def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
                super().__init__(cfg, run_dir)
                actor = Actor(gateways._call, dict(cfg), run_dir)
                if self.made.setdefault(run_dir, self) is self:
                    ray.get(actor.open.remote(), timeout=60.0)
                    actors[folder_of(run_dir).name] = actor
                else:
                    self.find_gateway()

            def listen(self, *given: Any) -> Any:
                return super(RayTransport, self).listen(*given)

            def make_slave_end(self, address: str) -> Any:
                is_far = self._gateway_calls is not None
                gateway = f"ray://elsewhere/{folder_of(self.run_dir).name}"
                return super().make_slave_end(gateway if is_far else address)

        monkeypatch.setattr("ray.get_actor", lambda name, namespace: actors[name])
        self.section = {"address": ray_address, "lost_after_s": 60.0}
        self.two_nodes = TwoNodes
        yield
        for transport in TwoNodes.made.values():
            transport.close()
            transport.remove_data()

    def make_transport(self, run_dir: Path) -> RayTransport:
        made: RayTransport = self.two_nodes(self.section, run_dir)
        return made
