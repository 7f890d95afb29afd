"""A worker's connection to the master's socket."""

from __future__ import annotations

import secrets
import socket
import time

from dingsdk.errors import AuthError, ProtocolError
from dingsdk.worker.comm.requests import (
    Answer,
    Channel,
    ForeignAnswerError,
    Head,
    ReconnectingLink,
    Secret,
)

CONNECT_TIMEOUT_S = 2.0
"""How long a connection to the master may take."""


class Ask(Head, frozen=True):
    """A request; its body is the frame of the message."""

    target: str


class Reply(Head, frozen=True):
    """The answer to a request; its body is the frame of the message."""

    status: int


class Connection(ReconnectingLink[Secret, Channel]):
    """A connection to the master. Thread safe: its requests wait for each other.

    Args:
        path: Path of the socket.
        max_bytes: The largest answer that is read.
    """

    errors = (OSError, ProtocolError)

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes

    def exchange(self, target: str, body: bytes, key: Secret, deadline: float) -> Answer:
        channel = self._channel or self._dial(key, deadline)
        channel.send(Ask(target), (body,), timeout_s=_left(deadline))
        answer, content = channel.receive(Reply, _left(deadline))
        return Answer(answer.status, bytes(content))

    def _dial(self, key: Secret, deadline: float) -> Channel:
        limit = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(sock, self._max_bytes)
        self.keep(channel)
        sock.settimeout(max(0.001, limit - time.monotonic()))
        sock.connect(self._path)
        try:
            channel.greet(key, secrets.token_hex(16), _left(limit))
        except (AuthError, ProtocolError) as error:
            raise ForeignAnswerError(f"the socket {self._path}: {error}") from error
        return channel


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
