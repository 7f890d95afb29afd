"""The base of transports that send messages as requests: the master's end and the transport."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dingsdk.errors import ClosedError
from dingsdk.worker.comm.requests.handler import RequestHandler
from dingsdk.worker.comm.requests.slave_end import RequestSlaveEnd
from dingsdk.worker.comm.scheduler import Scheduler, ThreadScheduler
from dingsdk.worker.comm.transport import (
    MasterEnd,
    MasterListener,
    Place,
    SlaveEnd,
    TaskMessage,
    Transport,
)

_log = logging.getLogger(__name__)

TELL_S = 2.0
"""How long a closing master waits for workers to send a request. A worker without a task sends one
at once, a worker that is busy with a task within ``slave_end.PRESENCE_S``."""


class Server(Protocol):
    """A server that passes requests to the handler."""

    def close(self, timeout_s: float) -> bool:
        """End all connections; return whether they ended in time."""


class RequestMasterEnd(MasterEnd):
    """A master end that serves requests; a transport implements ``listen``."""

    def __init__(self) -> None:
        self._until_close = ExitStack()
        self._lock = threading.Lock()
        self._handler: RequestHandler | None = None
        self._server: Server | None = None
        self._is_closed = False

    @abstractmethod
    def listen(
        self, listener: MasterListener, until_close: ExitStack
    ) -> tuple[RequestHandler, Server, str]:
        """Begin to serve; return the handler, its server, and the address for workers.

        Args:
            listener: The listener of the handler.
            until_close: Register other resources of the master here; they are closed after the
                server, or at once if this method raises.
        """

    def open(self, listener: MasterListener) -> str:
        """Listen; return the address. Errors are those of ``listen``."""
        with self._lock:
            if self._is_closed or self._server is not None:
                raise ClosedError("a master end opens once", what="master end")
            with ExitStack() as undo:
                self._handler, self._server, address = self.listen(listener, undo)
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
            raise ClosedError("the master end is not open", what="master end")
        return self._handler


class RequestTransport(Transport):
    """A transport that keeps a list of its ends; a subclass creates the ends and the stores.

    Args: as ``Transport``.
    """

    places: ClassVar[tuple[Place, ...]] = ("processes", "threads")

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._lock = threading.RLock()
        """Guards the objects that are created at their first use."""
        self._masters: list[RequestMasterEnd] = []
        self._slaves: list[RequestSlaveEnd[Any]] = []
        self._scheduler = ThreadScheduler()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @abstractmethod
    def make_master_end(self) -> RequestMasterEnd:
        """Return a master end that is not open yet; the lock is held."""

    @abstractmethod
    def make_slave_end(self, address: str) -> RequestSlaveEnd[Any]:
        """Return an unjoined slave end that connects to ``address``; the lock is held.

        Raises:
            ConfigError: it is not an address of this transport.
        """

    @abstractmethod
    def release(self) -> None:
        """Close the stores and other objects; all ends are closed, and the lock is held."""

    def master_end(self) -> MasterEnd:
        with self._lock:
            self._masters.append(self.make_master_end())
            return self._masters[-1]

    def slave_end(self, address: str) -> SlaveEnd:
        with self._lock:
            self._slaves.append(self.make_slave_end(address))
            return self._slaves[-1]

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
            self.release()
