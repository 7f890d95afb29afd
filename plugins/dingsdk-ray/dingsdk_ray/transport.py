"""The ray transport: workers as actors of a cluster, payloads on the coordinator's node.

On that node it is the shared_memory transport. Workers on other nodes use the run's gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from dingsdk_shared_memory.connection import Connection
from dingsdk_shared_memory.run_memory import folder_of
from dingsdk_shared_memory.server import SocketServer
from dingsdk_shared_memory.transport import SCHEME, SharedMemoryTransport
from msgspec import Meta

from dingsdk.config import Section
from dingsdk.errors import ConfigError, listing, nearest_name
from dingsdk.plugins import default_manager
from dingsdk.runtime import Secret, find_secret
from dingsdk.worker.comm import PolicyStore, StepDataStore, WorkerHandle
from dingsdk.worker.comm.requests import RequestHandler, RequestSlaveEnd
from dingsdk_ray import cluster
from dingsdk_ray.gateway_client import (
    GatewayCalls,
    GatewayDataStore,
    GatewayLink,
    GatewayPolicyStore,
)

if TYPE_CHECKING:
    from dingsdk_ray.workers import Workers

TYPE_KEY = "ray"
FAR_SCHEME = "ray://"


class RoleResources(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resources of the cluster that one worker of a role uses.

    Attributes:
        num_cpus: Number of CPUs; Ray only counts with it.
        num_gpus: Number of GPUs; the worker sees only these.
        custom: Amounts of Ray's custom resources, by name.
    """

    num_cpus: Annotated[float, Meta(ge=0)] = 1.0
    num_gpus: Annotated[float, Meta(ge=0)] = 0.0
    custom: dict[str, float] = msgspec.field(default_factory=dict)


class RayTransport(SharedMemoryTransport):
    """Workers as actors of a Ray cluster: payloads and policies are on the coordinator's node."""

    class Config(SharedMemoryTransport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``: the keys of ``shared_memory``, and these.

        Attributes:
            address: ``local`` starts a Ray on this host and stops it after the run; ``auto`` joins
                the cluster of this host; ``host:port`` joins the cluster whose GCS is there.
            allow_insecure_ray: Whether a cluster that other hosts reach may work without
                RAY_AUTH_MODE=token.
            resources: Resources of one worker, by role: ``num_cpus``, ``num_gpus``, and
                ``custom`` resources of Ray by name. A role that is not listed uses one CPU.
            placement: Strategy of Ray's placement groups that spreads the actors of a run over
                nodes. Empty: actors start wherever there is room, also on nodes that join later.
            object_store_bytes: Object store of a local Ray, in bytes; 0 for Ray's own choice.
            start_timeout_s: Seconds for a placement group to find room.
        """

        type: str = TYPE_KEY
        address: str = "local"
        allow_insecure_ray: bool = False
        resources: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
        placement: Literal["", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = ""
        object_store_bytes: Annotated[int, Meta(ge=0)] = 0
        start_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0

        def __post_init__(self) -> None:
            known = default_manager().known("roles") if self.resources else ()
            for role, found in self.resources.items():
                if role not in known:
                    near = nearest_name(role, known)
                    hint = f"; did you mean {near!r}" if near else ""
                    raise ValueError(
                        f"resources names {role!r}, which is no role{hint}; roles: {listing(known)}"
                    )
                try:
                    msgspec.convert(found, RoleResources)
                except msgspec.ValidationError as error:
                    raise ValueError(f"resources of {role!r}: {error}") from error

    starts_workers: ClassVar[bool] = True

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._is_connected = False
        self._gateway_calls: GatewayCalls | None = None
        self._workers: Workers | None = None

    def launch(self, workers: Sequence[tuple[str, str]]) -> None:
        """Join the cluster, or start one, and find room for the workers.

        Raises:
            ConfigError: there is no cluster, or it has no room for one worker of each role.
            InsecureBindError: the cluster works without tokens.
        """
        from dingsdk_ray.workers import Workers

        demands = [(worker_id, self._options_of(role)) for role, worker_id in workers]
        num_cpus = max(1.0, sum(each["num_cpus"] for _, each in demands))
        self._connect(num_cpus=num_cpus, shows_logs=True)
        started = Workers(demands, self.cfg.placement, self.cfg.start_timeout_s)
        self._workers = self.until_close.enter_context(closing(started))

    def start_worker(self, spec: Any) -> WorkerHandle:
        assert self._workers is not None  # launched
        return self._workers.start(spec)

    def listen(
        self, begin: Callable[[int], RequestHandler], until_close: ExitStack
    ) -> tuple[RequestHandler, SocketServer, str]:
        """Serve this node on its socket, and other nodes of a cluster through the gateway."""
        handler, server, address = super().listen(begin, until_close)
        if self.cfg.address == "local":
            return handler, server, address
        try:
            return handler, server, self.open_gateway(until_close)
        except BaseException:
            server.close()
            raise

    def make_slave_end(self, address: str) -> RequestSlaveEnd[Any]:
        if address.startswith(SCHEME):
            return super().make_slave_end(address)
        node_id, name = parse_address(address)
        if self.cfg.address == "local":
            raise ConfigError(
                f"the coordinator is at {address}, in a cluster: set system.transport.address",
                path="system.transport.address",
            )
        if self.is_on(node_id):
            return super().make_slave_end(SCHEME + self.memory.socket)
        if self._gateway_calls is None:
            if self._data_store is not None or self._policy_store is not None:
                raise RuntimeError("call data_store() and policy_store() after slave_end()")
            # Used also after the close: its stores raise errors, and no store of this node is made.
            self._gateway_calls = self.until_close.enter_context(closing(GatewayCalls(name)))
        return self.slave_end_of(address, lambda: GatewayLink(name), lambda run: True)

    def make_data_store(self) -> StepDataStore:
        if self._gateway_calls is None:
            return super().make_data_store()
        return GatewayDataStore(
            self._gateway_calls,
            self.cfg.lost_after_s,
            max_payload_bytes=self.cfg.max_payload_bytes,
            algorithm=self.cfg.digest,
        )

    def make_policy_store(self) -> PolicyStore:
        if self._gateway_calls is None:
            return super().make_policy_store()
        return GatewayPolicyStore(self._gateway_calls, self.cfg.lost_after_s)

    def is_on(self, node_id: str) -> bool:
        """Join the cluster, and return whether this process is on that node."""
        import ray

        self._connect()
        return bool(ray.get_runtime_context().get_node_id() == node_id)

    def open_gateway(self, until_close: ExitStack) -> str:
        """Start the run's gateway on this node; return the address that workers connect to."""
        import ray

        from dingsdk_ray.gateway import start_gateway

        self._connect()
        name = folder_of(self.run_dir).name
        section = msgspec.to_builtins(self.cfg)
        gateway = start_gateway(name, RayTransport, section, self.run_dir.absolute())
        until_close.callback(ray.kill, gateway, no_restart=True)
        return f"{FAR_SCHEME}{ray.get_runtime_context().get_node_id()}/{name}"

    def connection(self) -> Connection:
        """Return an unused connection to the coordinator, which is on this node."""
        return Connection(self.memory.socket, self.cfg.max_message_bytes)

    def secret(self) -> Secret | None:
        """Return the secret of the run, or None before its coordinator has opened."""
        return find_secret(self.memory.folder)

    def _connect(self, *, num_cpus: float = 1.0, shows_logs: bool = False) -> None:
        with self._lock:
            if not self._is_connected:
                cluster.connect(
                    self.cfg.address,
                    allow_insecure=self.cfg.allow_insecure_ray,
                    num_cpus=num_cpus,
                    object_store_bytes=self.cfg.object_store_bytes,
                    shows_logs=shows_logs,
                )
                self._is_connected = True
                self.until_close.callback(cluster.disconnect)

    def _options_of(self, role: str) -> dict[str, Any]:
        found = msgspec.convert(self.cfg.resources.get(role, {}), RoleResources)
        return {"num_cpus": found.num_cpus, "num_gpus": found.num_gpus, "resources": found.custom}


def parse_address(address: str) -> tuple[str, str]:
    """Return node id and name of ``ray://<node id>/<name>``.

    Raises:
        ConfigError: the address is not valid.
    """
    node_id, _, name = address.removeprefix(FAR_SCHEME).partition("/")
    if address.startswith(FAR_SCHEME) and node_id.isalnum() and name and "/" not in name:
        return node_id, name
    raise ConfigError(
        f"{address!r} is no address of a coordinator; it prints one like "
        f"{FAR_SCHEME}1f2e3d4c/dingsdk-1000-1f2e3d4c, or {SCHEME}/dev/shm/dingsdk-1000-1f2e/socket",
        path="system.transport",
    )
