"""The coordinator's end: a request handler behind a local socket."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dingsdk.runtime import locked_folder
from dingsdk.worker.comm import MasterListener
from dingsdk.worker.comm.requests import RequestHandler, RequestMasterEnd, create_secret
from dingsdk_shared_memory.run_memory import DATA, RunMemory, remove_stale
from dingsdk_shared_memory.server import SocketServer

if TYPE_CHECKING:
    from dingsdk_shared_memory.transport import SharedMemoryTransport

SCHEME = "unix:"


class SocketMasterEnd(RequestMasterEnd):
    """The coordinator's end; once opened, it listens on ``unix:<path of the socket>``.

    Args:
        cfg: ``system.transport``, complete.
        memory: The run's folder.
    """

    def __init__(self, cfg: SharedMemoryTransport.Config, memory: RunMemory) -> None:
        super().__init__()
        self._cfg = cfg
        self._memory = memory

    def listen(
        self, listener: MasterListener, until_close: ExitStack
    ) -> tuple[RequestHandler, SocketServer, str]:
        """Begin to serve, and remove the folders of dead runs on this host.

        Raises:
            AuthError: the secret cannot be used.
            PortInUseError: the socket cannot be bound.
            RunDirLockedError: another master of the run is running.
        """
        cfg, folder = self._cfg, self._memory.folder
        taken = f"another coordinator of the run is using {self._memory.path}"
        # Not the folder itself, which each process of the run has locked as in use.
        until_close.enter_context(locked_folder(self._memory.path / DATA, taken))
        remove_stale()
        secret = create_secret(folder)
        # Each connection has a thread of its own, so that all may wait.
        handler = self.handler_of(
            listener, folder, cfg.max_message_bytes, max_polls=cfg.max_connections
        )
        server = SocketServer(
            self._memory.socket,
            handler.answer,
            secret,
            connections=cfg.max_connections,
            max_bytes=cfg.max_message_bytes,
            timeout_s=cfg.request_timeout_s,
        )
        return handler, server, SCHEME + self._memory.socket
