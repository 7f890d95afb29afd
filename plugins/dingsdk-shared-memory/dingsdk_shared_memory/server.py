"""A server for requests on a local socket, with one thread per connection."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable
from pathlib import Path

from dingsdk.errors import PortInUseError
from dingsdk.runtime import BACKLOG, Connections
from dingsdk.worker.comm.requests import Answer, Channel, Secret
from dingsdk_shared_memory.connection import Ask, Reply


class SocketServer:
    """Serves until it is closed.

    Args:
        path: Path of the socket; the socket of a dead master is replaced.
        serve: (kind of request, body) -> answer; called from many threads.
        secret: Secret that peers must know.
        connections: Workers' connections that may be open at once; others are closed.
        max_bytes: Largest request.
        timeout_s: How long a request may take to come in, and an answer to leave.

    Raises:
        PortInUseError: the socket cannot be bound.
    """

    def __init__(
        self,
        path: str,
        serve: Callable[[str, bytes], Answer],
        secret: Secret,
        *,
        connections: int,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self._path = path
        self._serve = serve
        self._timeout_s = timeout_s
        self._connections = Connections(
            _bind(path),
            lambda sock: Channel(sock, max_bytes),
            lambda channel: channel.welcome(secret),
            self._talk,
            most=connections,
            name="socket",
        )

    def close(self, timeout_s: float = 5.0) -> bool:
        """End all connections; return whether all threads ended in time."""
        has_ended = self._connections.close(timeout_s)
        with contextlib.suppress(OSError):  # the folder may be gone
            Path(self._path).unlink()
        return has_ended

    def _talk(self, channel: Channel, client: str) -> None:
        """Answer requests until either end closes."""
        while True:
            asked, body = channel.receive(Ask, self._timeout_s, math.inf)
            answer = self._serve(asked.target.removeprefix("/v1/"), bytes(body))
            reply = Reply(answer.status)
            channel.send(reply, (answer.body,), timeout_s=self._timeout_s)


def _bind(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()  # we hold the master's lock: nobody listens there
        made.bind(path)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise PortInUseError(f"cannot listen on {path}: {error}", host="", port=0) from error
    return made
