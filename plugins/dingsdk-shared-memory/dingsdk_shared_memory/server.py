"""A server for requests on a local socket, with one thread per connection."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from dingsdk.data import Connections
from dingsdk.errors import PortInUseError
from dingsdk.worker.comm.requests import Answer, ForeignAnswerError, LinkError, Secret
from dingsdk_shared_memory.channel import Channel
from dingsdk_shared_memory.connection import STATUS

_log = logging.getLogger(__name__)

HANDSHAKE_S = 2.0
"""How long a worker may take to prove that it knows the secret."""
BACKLOG = 256
"""Connections that wait to be accepted."""
_TARGET_BYTES = 64
"""Largest size of the target, which precedes the body of a request."""


class SocketServer:
    """Serves until it is closed.

    Args:
        path: Path of the socket; the socket of a dead master is replaced.
        serve: (kind of request, body) -> answer; called from many threads.
        secret: Secret that peers must know.
        connections: Connections that may be open at once; others are closed.
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
        self._secret = secret
        self._timeout_s = timeout_s
        self._connections = Connections(
            _bind(path),
            lambda sock: Channel(sock, max_bytes + _TARGET_BYTES),
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

    def _talk(self, channel: Channel) -> None:
        """Answer requests until either end closes."""
        try:
            if not channel.greet(self._secret, time.monotonic() + HANDSHAKE_S):
                _log.warning("a process that does not know the run's secret was refused")
                return
            while True:
                request = channel.receive(None, self._timeout_s)
                target, _, body = request.partition(b"\n")
                kind = target.removeprefix(b"/v1/").decode("ascii", "replace")
                answer = self._serve(kind, body)
                content = STATUS.pack(answer.status) + answer.body
                channel.send(content, time.monotonic() + self._timeout_s)
        except ForeignAnswerError as error:
            _log.warning("a connection was refused: %s", error)
        except (OSError, LinkError) as error:
            _log.debug("a connection ended: %s", error)


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
