"""The shared_memory transport: messages over a local socket, payloads in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from dingsdk.config import Whole
from dingsdk.errors import ConfigError
from dingsdk.runtime import PrivateDir, locked_folder
from dingsdk.worker.comm import MasterEnd, PolicyStore, StepDataStore
from dingsdk.worker.comm.files import POLICY_FOLDER
from dingsdk.worker.comm.requests import (
    RequestHandler,
    RequestSlaveEnd,
    RequestTransport,
    Secret,
    create_secret,
    find_run_secret,
)
from dingsdk_shared_memory.connection import Connection
from dingsdk_shared_memory.data_store import SharedDataStore
from dingsdk_shared_memory.policy_store import SharedPolicyStore
from dingsdk_shared_memory.run_memory import (
    DATA,
    ROOT,
    RunMemory,
    bring_back,
    folder_of,
    forget_kept,
    keep,
    remove,
    remove_stale,
)
from dingsdk_shared_memory.segments import Segments
from dingsdk_shared_memory.server import SocketServer

TYPE_KEY = "shared_memory"
SCHEME = "unix:"


class SharedMemoryTransport(RequestTransport):
    """Workers as processes of one host: a local socket, and shared memory for large data."""

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"many_processes"})
    """What `dingsdk check` tests in addition to the rules for all transports."""

    class Config(RequestTransport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            data_dir: Folder of the run in shared memory; one in ``/dev/shm`` that is named after
                the run folder when empty.
            max_connections: Connections that may be open at once; a worker has two.
            min_free_bytes: Free bytes of shared memory below which collectors wait.
            digest: Digest of payloads and policies. ``head`` covers only the head (kind, dtypes,
                shapes), for memory: on a disk, ``xxh3-128`` is used instead, which detects damage.
                ``sha256`` also detects forgeries.
        """

        type: str = TYPE_KEY
        data_dir: str = ""
        max_connections: Annotated[int, Meta(ge=8, le=4096)] = 512
        min_free_bytes: Whole = 8 << 20
        digest: Literal["head", "xxh3-128", "sha256"] = "head"

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self.data_dir = Path(self.cfg.data_dir) if self.cfg.data_dir else folder_of(Path(run_dir))

    def master_end(self) -> MasterEnd:
        end = super().master_end()
        # Before the coordinator checks which payloads of its journal are stored.
        store = self.data_store()
        assert isinstance(store, SharedDataStore)  # a coordinator is on the node of its run
        bring_back(store.segments, self.run_dir)
        return end

    def listen(
        self, begin: Callable[[int], RequestHandler], until_close: ExitStack
    ) -> tuple[RequestHandler, SocketServer, str]:
        """Serve on ``unix:<path of the socket>``, and remove the folders of dead runs on this host.

        Raises:
            AuthError: the secret cannot be used.
            PortInUseError: the socket cannot be bound.
            RunDirLockedError: another master of the run is running.
        """
        memory, connections = self.memory, self.cfg.max_connections
        taken = f"another coordinator of the run is using {memory.path}"
        # Not the folder itself, which each process of the run has locked as in use.
        until_close.enter_context(locked_folder(memory.path / DATA, taken))
        remove_stale()
        secret = create_secret(self.folder)
        # Each connection has a thread of its own, so that all may wait.
        handler = begin(connections)
        server = SocketServer(
            memory.socket,
            handler.answer,
            secret,
            connections=connections,
            max_bytes=self.cfg.max_message_bytes,
            timeout_s=self.cfg.request_timeout_s,
        )
        return handler, server, SCHEME + memory.socket

    def make_slave_end(self, address: str) -> RequestSlaveEnd[Secret]:
        path = address.removeprefix(SCHEME)
        if not address.startswith(SCHEME) or not path.startswith("/"):
            raise ConfigError(
                f"{address!r} is no address of a coordinator; it prints one like "
                f"{SCHEME}{self.data_dir}/socket",
                path="system.transport",
            )
        folder = self.folder
        return self.slave_end_of(
            path,
            lambda: Connection(path, self.cfg.max_message_bytes),
            lambda run: find_run_secret(folder, run),
        )

    def make_data_store(self) -> StepDataStore:
        store = SharedDataStore(
            self._segments(DATA),
            max_payload_bytes=self.cfg.max_payload_bytes,
            algorithm=self._digest(),
        )
        return self.until_close.enter_context(closing(store))

    def make_policy_store(self) -> PolicyStore:
        store = SharedPolicyStore(
            self._segments(POLICY_FOLDER),
            keep_versions=self.cfg.keep_policy_versions,
            max_policy_bytes=self.cfg.max_policy_bytes,
            algorithm=self._digest(),
        )
        return self.until_close.enter_context(closing(store))

    def remove_data(self) -> None:
        remove(self.data_dir)
        forget_kept(self.run_dir)

    def keep_data(self) -> None:
        keep(self.data_dir, self.run_dir)

    @property
    def folder(self) -> PrivateDir:
        return self.memory.folder

    @cached_property
    def memory(self) -> RunMemory:
        """The run's folder in shared memory."""
        return self.until_close.enter_context(closing(RunMemory(self.data_dir, self.run_dir)))

    def _digest(self) -> str:
        is_memory = self.memory.path.stat().st_dev == ROOT.stat().st_dev
        return self.cfg.digest if is_memory or self.cfg.digest != "head" else "xxh3-128"

    def _segments(self, name: str) -> Segments:
        return Segments(self.memory.folder.sub(name), self.cfg.min_free_bytes)
