"""The ray transport: workers as actors, payloads and policies in the object store."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from dingsdk.config import Section
from dingsdk.data import PrivateDir
from dingsdk.errors import ConfigError, DataMissingError, listing, nearest_name
from dingsdk.plugins import default_manager
from dingsdk.worker.comm import (
    PolicyStore,
    StepDataStore,
    Transport,
    WorkerHandle,
)
from dingsdk.worker.comm.requests import RequestSlaveEnd, RequestTransport
from dingsdk_ray import cluster
from dingsdk_ray.cluster import HubLink
from dingsdk_ray.ends import RayMasterEnd, SlaveLink
from dingsdk_ray.hub import MAX_MESSAGE_BYTES
from dingsdk_ray.stores import RayDataStore, RayPolicyStore

if TYPE_CHECKING:
    from dingsdk_ray.workers import Workers

TYPE_KEY = "ray"
_FOLDER, _RUN_FILE = "transport", "ray-run"


class RoleResources(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one worker of a role takes of the cluster.

    Attributes:
        num_cpus: CPUs, a number to count with.
        num_gpus: GPUs; those that the worker gets are the ones that it sees.
        custom: Other resources of Ray by name.
    """

    num_cpus: Annotated[float, Meta(ge=0)] = 1.0
    num_gpus: Annotated[float, Meta(ge=0)] = 0.0
    custom: dict[str, float] = msgspec.field(default_factory=dict)


class RayTransport(RequestTransport):
    """One object a process; the README lists the config keys."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"many_processes"})
    """What `dingsdk check` holds it to beyond the rules for all transports."""
    contract_config: ClassVar[Mapping[str, Any]] = {"namespace": "check"}
    """What `dingsdk check` sets: a hub takes seconds to start, and the rules share one."""

    class Config(Transport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            address: ``local`` starts a Ray on this host and stops it after the run; ``auto`` joins
                the cluster of this host, ``host:port`` the one of that GCS.
            namespace: Ray's namespace of the hub, an actor that runs of one namespace share; empty:
                the run has one of its own.
            allow_insecure_ray: Whether a cluster that other hosts reach may do without
                RAY_AUTH_MODE=token.
            resources: What one worker takes, by role, as ``RoleResources``; one CPU where a role
                is not named.
            placement: How the actors of a run are spread over nodes, as Ray's placement groups
                have it; empty: wherever there is room, as nodes come and go.
            object_store_bytes: Object store of a local Ray, in bytes; 0 for Ray's own choice.
            start_timeout_s: Seconds for the hub to start, and for a placement group to find room.
            request_timeout_s: Seconds for an immediate answer.
            lost_after_s: Seconds of silence after which a worker gives up its coordinator.
        """

        type: str = TYPE_KEY
        address: str = "local"
        namespace: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{0,64}$")] = ""
        allow_insecure_ray: bool = False
        resources: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
        placement: Literal["", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = ""
        object_store_bytes: Annotated[int, Meta(ge=0)] = 0
        start_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
        request_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
        lost_after_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0

        def __post_init__(self) -> None:
            cluster.check_ray()
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
        self._address = self.cfg.address
        self._namespace, self._run = self.cfg.namespace, ""
        self._num_cpus = 1.0
        self._shows_logs = False
        self._link: HubLink | None = None
        self._workers: Workers | None = None

    def launch(self, workers: Sequence[tuple[str, str]]) -> None:
        """Join the cluster, or start one, and find room for the workers.

        Raises:
            ConfigError: there is no cluster, or it has no room for one worker of each role.
            InsecureBindError: it does without tokens.
        """
        from dingsdk_ray.workers import Workers

        demands = [(worker_id, self._options_of(role)) for role, worker_id in workers]
        self._num_cpus = max(1.0, sum(each["num_cpus"] for _, each in demands))
        self._shows_logs = True
        self._connected()
        self._workers = Workers(demands, self.cfg.placement, self.cfg.start_timeout_s)

    def start_worker(self, spec: Any) -> WorkerHandle:
        assert self._workers is not None  # launched
        return self._workers.start(spec)

    def make_master_end(self) -> RayMasterEnd:
        return RayMasterEnd(
            self._connected(),
            lambda: f"{self._address}/{self._namespace}/{self._run}",
            self.cfg.request_timeout_s,
        )

    def make_slave_end(self, address: str) -> RequestSlaveEnd[bool]:
        gcs, namespace, run = parse_address(address)
        if self._link is None:
            self._address, self._namespace, self._run = gcs, namespace, run
        link = self._connected()
        if (namespace, run) != (self._namespace, self._run):
            raise ConfigError(
                f"{address!r} is the coordinator of another run; this process has joined "
                f"{self._address}/{self._namespace}/{self._run}",
                path="system.transport",
            )
        return RequestSlaveEnd(
            address,
            lambda: SlaveLink(link),
            self._scheduler,
            lambda: True,
            max_bytes=MAX_MESSAGE_BYTES,
            request_timeout_s=self.cfg.request_timeout_s,
            lost_after_s=self.cfg.lost_after_s,
        )

    def data_store(self) -> StepDataStore:
        return RayDataStore(self._connected, self.cfg.request_timeout_s)

    def policy_store(self) -> PolicyStore:
        return RayPolicyStore(self._connected, self.cfg.request_timeout_s)

    def release(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()
        if link is not None:
            link.close()
            cluster.disconnect()

    def remove_data(self) -> None:
        folder = self.run_dir / _FOLDER
        if folder.is_dir() and not cluster.has_ended(self._address):
            is_last = not self.cfg.namespace
            self._connected().remove(self.cfg.request_timeout_s, is_last=is_last)
            self.close()
        if folder.is_dir():
            with PrivateDir(folder, create=False) as root:
                root.unlink(_RUN_FILE)
            with contextlib.suppress(OSError):  # not empty: it is somebody else's as well
                folder.rmdir()

    def _connected(self) -> HubLink:
        with self._lock:
            if self._link is None:
                self._address = cluster.connect(
                    self._address,
                    allow_insecure=self.cfg.allow_insecure_ray,
                    num_cpus=self._num_cpus,
                    object_store_bytes=self.cfg.object_store_bytes,
                    shows_logs=self._shows_logs,
                )
                self._run = self._run or _run_id(self.run_dir / _FOLDER)
                self._namespace = self._namespace or f"dingsdk-{self._run}"
                self._link = HubLink(self._namespace, self._run, self.cfg.start_timeout_s)
            return self._link

    def _options_of(self, role: str) -> dict[str, Any]:
        found = msgspec.convert(self.cfg.resources.get(role, {}), RoleResources)
        return {"num_cpus": found.num_cpus, "num_gpus": found.num_gpus, "resources": found.custom}


def _run_id(path: Path) -> str:
    """Return the id of the run whose folder it is; the first of its processes draws it."""
    with PrivateDir(path) as folder:
        try:
            return folder.read(_RUN_FILE, 64).decode()
        except DataMissingError:
            drawn = secrets.token_hex(8)
            part = f"{_RUN_FILE}.{drawn}"
            folder.write_atomic(part, [drawn.encode()], durable=True)
            with contextlib.suppress(FileExistsError):  # two drew one: the first link counts
                os.link(folder.path / part, folder.path / _RUN_FILE)
            folder.unlink(part)
            return folder.read(_RUN_FILE, 64).decode()


def parse_address(address: str) -> tuple[str, str, str]:
    """Return cluster, namespace and run of ``host:port/namespace/run``.

    Raises:
        ConfigError: it is none.
    """
    gcs, namespace, run, *rest = (address + "//").split("/")
    host, _, port = gcs.rpartition(":")
    if host and port.isdecimal() and namespace and run and not any(rest):
        return gcs, namespace, run
    raise ConfigError(
        f"{address!r} is no address of a coordinator; it prints one like "
        "10.0.0.1:6379/dingsdk-1f2e3d4c/1f2e3d4c",
        path="system.transport",
    )
