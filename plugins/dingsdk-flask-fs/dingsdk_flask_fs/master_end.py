"""The coordinator's end: a request handler, and the server that workers dial."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dingsdk.data import PrivateDir
from dingsdk.errors import ClosedError, InsecureBindError
from dingsdk.worker.comm import MasterEnd, MasterListener, TaskMessage, ThreadScheduler
from dingsdk.worker.comm.requests import (
    FILE_VARIABLE,
    VARIABLE,
    RequestHandler,
    Secret,
    begin_epoch,
    create_secret,
)
from dingsdk_flask_fs.app import create_app
from dingsdk_flask_fs.auth import Verifier
from dingsdk_flask_fs.folder_lock import folder_lock
from dingsdk_flask_fs.guard import Guard, Throttle, ip_address_of
from dingsdk_flask_fs.server import HttpServer

if TYPE_CHECKING:
    from dingsdk_flask_fs.transport import FlaskFSTransport

_log = logging.getLogger(__name__)

MIN_FREE_THREADS = 4
TELL_S = 2.0
"""How long a closing master waits for workers to ask. One without a task does so at once, as all
are at the end of a run; one that is busy with a task, within ``slave_end.PRESENCE_S``."""


class HttpMasterEnd(MasterEnd):
    """Listens once opened.

    Args:
        cfg: ``system.transport``, complete.
        folder: The transport's own folder.
    """

    def __init__(self, cfg: FlaskFSTransport.Config, folder: PrivateDir) -> None:
        self._cfg = cfg
        self._folder = folder
        self._until_close = ExitStack()
        self._lock = threading.Lock()
        self._handler: RequestHandler | None = None
        self._server: HttpServer | None = None
        self._is_closed = False

    def open(self, listener: MasterListener) -> str:
        """Listen; return ``http://host:port``.

        Raises:
            AuthError: the secret cannot be used.
            InsecureBindError: others could reach the address, and no secret was chosen.
            PortInUseError: the address is taken.
            RunDirLockedError: another run uses the folder.
        """
        with self._lock:
            if self._is_closed or self._server is not None:
                raise ClosedError("a master end opens once", what="master end")
            cfg = self._cfg
            host, max_bytes = cfg.host, cfg.max_message_bytes
            with ExitStack() as undo:
                undo.enter_context(folder_lock(self._folder.path))
                secret = create_secret(self._folder)
                _check_reach(host, secret)
                server = HttpServer(
                    host,
                    cfg.port,
                    threads=cfg.threads,
                    connections=cfg.max_connections,
                    max_bytes=max_bytes,
                    read_s=cfg.request_timeout_s,
                )
                undo.callback(server.close)
                run, epoch = begin_epoch(self._folder)
                handler = RequestHandler(
                    listener,
                    run,
                    epoch,
                    max_bytes=max_bytes,
                    max_polls=max(1, cfg.threads - max(MIN_FREE_THREADS, cfg.threads // 4)),
                    lease_s=self.lease_s,
                    scheduler=ThreadScheduler(),
                )
                verifier = Verifier(secret)
                guard = Guard(
                    verifier,
                    Throttle(),
                    _own_names(host) | set(cfg.allowed_hosts),
                    any_address=_is_wildcard(host),
                    max_bytes=max_bytes,
                )
                server.start(create_app(handler, guard, verifier, max_bytes))
                self._until_close = undo.pop_all()
            self._handler, self._server = handler, server
        name = socket.gethostname() if _is_wildcard(host) else host
        return f"http://[{name}]:{server.port}" if ":" in name else f"http://{name}:{server.port}"

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        self._opened().send(worker_id, incarnation, task)

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        self._opened().drop(worker_id, incarnation)

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off as if its host had died; it may join again."""
        self._opened().abandon(worker_id, None, "abandoned")

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            handler, server = self._handler, self._server
        deadline = time.monotonic() + timeout_s
        if handler is not None:
            # Whoever is not told has to take the silence for a master that may come back.
            handler.close()
            handler.wait_told(min(TELL_S, timeout_s / 2))
        timeout_s = max(0.1, deadline - time.monotonic())
        if server is not None and not server.close(timeout_s):
            _log.warning("the http server did not end within %.1f s", timeout_s)
        self._until_close.close()

    def _opened(self) -> RequestHandler:
        if self._handler is None:
            raise ClosedError("the master end is not open", what="master end")
        return self._handler


def _check_reach(host: str, secret: Secret) -> None:
    if _is_loopback(host):
        return
    if not secret.is_explicit:
        raise InsecureBindError(
            f"system.transport.host is {host!r}, which other hosts can reach: choose a secret "
            f"for all of them ({FILE_VARIABLE} or {VARIABLE}), or listen on 127.0.0.1",
            path="system.transport.host",
            host=host,
        )
    _log.warning(
        "listening on %s: messages are signed but not encrypted; use a private network, or a "
        "tunnel that encrypts",
        host,
    )


def _own_names(host: str) -> set[str]:
    names = {host.lower(), "localhost", "127.0.0.1", "::1"}
    if not _is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return names


def _is_loopback(host: str) -> bool:
    # Only what is certain: a name could be made to resolve to anything.
    address = ip_address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_wildcard(host: str) -> bool:
    address = ip_address_of(host)
    return host == "" if address is None else address.is_unspecified
