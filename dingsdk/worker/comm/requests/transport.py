"""The base of transports that send messages as requests: the master's end and the transport."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta

from dingsdk.data import decode_json, encode_json
from dingsdk.data.container import checkpoint_errors
from dingsdk.errors import ClosedError, DataMissingError
from dingsdk.runtime import PrivateDir, Secret, find_secret
from dingsdk.worker.comm.requests.handler import RequestHandler
from dingsdk.worker.comm.requests.link import Link, LinkError
from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd
from dingsdk.worker.comm.scheduler import Scheduler, ThreadScheduler
from dingsdk.worker.comm.transport import (
    MasterEnd,
    MasterListener,
    Place,
    PolicyStore,
    SlaveEnd,
    StepDataStore,
    TaskMessage,
    Transport,
)

_log = logging.getLogger(__name__)
_Key = TypeVar("_Key")

TELL_S = 2.0
"""How long a closing master waits for workers to send a request. A worker without a task sends one
at once, a worker that is busy with a task within ``slave_end.PRESENCE_S``."""
EPOCH_FILE = "epoch.json"
"""File that outlives a master: the id of the run, and how often its master was started."""
_EPOCH_KIND, _EPOCH_BYTES = "run-epoch", 4096
"""The kind of the file, and its largest size."""


class Server(Protocol):
    """A server that passes requests to the handler."""

    def close(self, timeout_s: float) -> bool:
        """End all connections; return whether they ended in time."""


Listening = tuple[RequestHandler, Server | None, str]
"""What answers the requests, its server if there is one, and the address for workers."""


class RequestMasterEnd(MasterEnd):
    """A master end that serves requests.

    Args:
        listen: Begins to serve, given the listener, the length of the lease, and a stack for
            resources that are closed with the end.
    """

    def __init__(
        self, listen: Callable[[MasterListener, float | None, ExitStack], Listening]
    ) -> None:
        self._listen = listen
        self._until_close = ExitStack()
        self._lock = threading.Lock()
        self._handler: RequestHandler | None = None
        self._server: Server | None = None
        self._is_closed = False

    def open(self, listener: MasterListener) -> str:
        """Listen; return the address. Errors are those of ``RequestTransport.listen``."""
        with self._lock:
            if self._is_closed or self._handler is not None:
                raise ClosedError("a master end opens once", what="master end")
            with ExitStack() as undo:
                self._handler, self._server, address = self._listen(listener, self.lease_s, undo)
                self._until_close = undo.pop_all()
        return address

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        self._opened().send(worker_id, incarnation, task)

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        self._opened().drop(worker_id, incarnation)

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off as if its host had died; it may join again. For tests."""
        self._opened().abandon(worker_id, None, "abandoned")

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            handler, server = self._handler, self._server
        deadline = time.monotonic() + timeout_s
        if handler is not None:
            # A worker that does not learn of the close waits for the master to come back.
            handler.close()
            handler.wait_told(min(TELL_S, timeout_s / 2))
        timeout_s = max(0.1, deadline - time.monotonic())
        if server is not None and not server.close(timeout_s):
            _log.warning("the server did not end within %.1f s", timeout_s)
        self._until_close.close()

    def _opened(self) -> RequestHandler:
        if self._handler is None:
            with self._lock:
                pass  # wait for open(): workers can join, and are sent tasks, before it returns
        if self._handler is None:
            raise ClosedError("the master end is not open", what="master end")
        return self._handler


class _Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    epoch: Annotated[int, Meta(ge=1)]


def begin_epoch(folder: PrivateDir) -> tuple[str, int]:
    """Count a start of the run's master; return the run's id and the number of this start.

    Messages contain both, so that messages for an earlier master are not accepted by this one.

    Raises:
        CheckpointCorruptError: the file is damaged; to count from the beginning could repeat a
            number.
        RunFolderError, StorageFullError: it cannot be written.
    """
    found = _read_epoch(folder) or _Epoch(uuid.uuid4().hex, 0)
    fields = {"run": found.run, "epoch": found.epoch + 1}
    folder.write_atomic(EPOCH_FILE, [encode_json(_EPOCH_KIND, fields)], durable=True)
    return found.run, found.epoch + 1


def find_run_secret(folder: PrivateDir, run: str) -> Secret:
    """Return the secret of a run for a worker, which shares the run's folder with the master.

    Args:
        folder: The folder that the worker's config names.
        run: Id of the master's run; empty if it is not known yet.

    Raises:
        LinkError: the folder has no secret yet, or is not the folder of the run.
        AuthError, CheckpointCorruptError: a file in the folder cannot be used.
    """
    secret = find_secret(folder)
    if secret is None:
        raise LinkError(f"there is no secret in {folder.path} yet")
    if run:
        epoch = _read_epoch(folder)
        if epoch is None or epoch.run != run:
            raise LinkError(
                f"{folder.path} does not belong to the run of this master: all roles need the "
                "same folder, on a disk that they share"
            )
    return secret


def _read_epoch(folder: PrivateDir) -> _Epoch | None:
    with checkpoint_errors(folder.path / EPOCH_FILE, "remove its folder to start afresh"):
        try:
            content = folder.read(EPOCH_FILE, _EPOCH_BYTES)
        except DataMissingError:
            return None
        return msgspec.convert(decode_json(_EPOCH_KIND, content, _EPOCH_BYTES), _Epoch)


class RequestTransport(Transport):
    """A link and two stores; a subclass creates them, and this class keeps and closes them.

    Args: as ``Transport``.

    Attributes:
        until_close: Register the stores and other resources here; they are closed after all ends,
            the last one first.
    """

    class Config(Transport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            max_payload_bytes: Largest payload that is written or read, in bytes.
            max_policy_bytes: Largest policy that is written or read, in bytes.
            keep_policy_versions: Number of versions of a policy to keep.
            max_message_bytes: Largest message, in bytes.
            request_timeout_s: Seconds for a request to arrive, and for an immediate answer.
            lost_after_s: Seconds of silence after which a worker gives up its coordinator.
        """

        max_payload_bytes: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
        max_policy_bytes: Annotated[int, Meta(ge=1 << 20)] = 2 << 30
        keep_policy_versions: Annotated[int, Meta(ge=2)] = 3
        max_message_bytes: Annotated[int, Meta(ge=64 << 10, le=1 << 30)] = 4 << 20
        request_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
        lost_after_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0

    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._lock = threading.RLock()
        """Guards the objects that are created at their first use."""
        self._masters: list[RequestMasterEnd] = []
        self._slaves: list[RequestSlaveEnd[Any]] = []
        self._scheduler = ThreadScheduler()
        self._data_store: StepDataStore | None = None
        self._policy_store: PolicyStore | None = None
        self.until_close = ExitStack()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    @abstractmethod
    def folder(self) -> PrivateDir:
        """The folder that the processes of the run share, for its secret and its epoch."""

    @abstractmethod
    def listen(self, begin: Callable[[int], RequestHandler], until_close: ExitStack) -> Listening:
        """Begin to serve workers, for a master end that opens.

        Args:
            begin: Begins an epoch of the run, and returns the handler of its requests, of which as
                many may wait for tasks as given.
            until_close: Register other resources of the master here; they are closed after the
                server, or at once if this method raises.
        """

    @abstractmethod
    def make_slave_end(self, address: str) -> RequestSlaveEnd[Any]:
        """Return an unjoined slave end that connects to ``address``; the lock is held.

        Raises:
            ConfigError: it is not an address of this transport.
        """

    @abstractmethod
    def make_data_store(self) -> StepDataStore:
        """Return the store for payloads; called once, with the lock held."""

    @abstractmethod
    def make_policy_store(self) -> PolicyStore:
        """Return the store for policies; called once, with the lock held."""

    def slave_end_of(
        self, where: str, connect: Callable[[], Link[_Key]], find_key: Callable[[str], _Key]
    ) -> RequestSlaveEnd[_Key]:
        """Return an unjoined slave end with the limits of the config."""
        return RequestSlaveEnd(
            where,
            connect,
            self._scheduler,
            find_key,
            max_bytes=self.cfg.max_message_bytes,
            request_timeout_s=self.cfg.request_timeout_s,
            lost_after_s=self.cfg.lost_after_s,
        )

    def master_end(self) -> MasterEnd:
        """Return the coordinator's end, which is not open yet.

        Raises:
            AuthError, CheckpointCorruptError: a file of the folder cannot be used. `open` would
                raise it too, but a coordinator restores its run before that.
        """
        with self._lock:
            find_secret(self.folder)
            _read_epoch(self.folder)
            self._masters.append(RequestMasterEnd(partial(self._listen, self.folder)))
            return self._masters[-1]

    def slave_end(self, address: str) -> SlaveEnd:
        with self._lock:
            self._slaves.append(self.make_slave_end(address))
            return self._slaves[-1]

    def data_store(self) -> StepDataStore:
        with self._lock:
            if self._data_store is None:
                self._data_store = self.make_data_store()
            return self._data_store

    def policy_store(self) -> PolicyStore:
        with self._lock:
            if self._policy_store is None:
                self._policy_store = self.make_policy_store()
            return self._policy_store

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off from this process's master as if its host had died."""
        for end in self._masters:
            end.abandon_worker(worker_id)

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            slaves, self._slaves = self._slaves, []
            masters, self._masters = self._masters, []
        for slave in slaves:
            slave.close(timeout_s)
        for master in masters:
            master.close(timeout_s)
        self._scheduler.close(timeout_s)
        with self._lock:
            self.until_close.close()

    def _listen(
        self,
        folder: PrivateDir,
        listener: MasterListener,
        lease_s: float | None,
        until_close: ExitStack,
    ) -> Listening:
        def begin(max_polls: int) -> RequestHandler:
            return RequestHandler(
                listener,
                *begin_epoch(folder),
                max_bytes=self.cfg.max_message_bytes,
                max_polls=max_polls,
                lease_s=lease_s,
                scheduler=self._scheduler,
            )

        return self.listen(begin, until_close)
