"""The coordinator's end over any kind of connection: a request handler, and a server before it."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from contextlib import ExitStack
from typing import Protocol

from dingsdk.errors import ClosedError
from dingsdk.worker.comm.requests.handler import RequestHandler
from dingsdk.worker.comm.transport import MasterEnd, MasterListener, TaskMessage

_log = logging.getLogger(__name__)

TELL_S = 2.0
"""How long a closing master waits for workers to ask. One without a task does so at once, as all
are at the end of a run; one that is busy with a task, within ``slave_end.PRESENCE_S``."""


class Server(Protocol):
    """What hands requests to the handler."""

    def close(self, timeout_s: float = 5.0) -> bool:
        """End all connections; return whether that was done in time."""


class RequestMasterEnd(MasterEnd):
    """Listens once opened; a transport says where, in ``listen``."""

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
        """Begin to serve; return the handler, its server, and the address that workers dial.

        Args:
            listener: For the handler.
            until_close: What else the master holds; closed after the server, or at once where
                this raises.
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
            # A worker that is not told waits for a master that may come back.
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
