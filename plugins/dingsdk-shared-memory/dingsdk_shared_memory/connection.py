"""A worker's connection to the master's socket."""

from __future__ import annotations

import socket
import struct
import time

from dingsdk.worker.comm.requests import Answer, ReconnectingLink, Secret
from dingsdk_shared_memory.channel import Channel

CONNECT_TIMEOUT_S = 2.0
"""How long a connection to the master may take."""
STATUS = struct.Struct("<H")


class Connection(ReconnectingLink[Secret, Channel]):
    """A connection to the master. Thread safe: its requests wait for each other.

    Args:
        path: Path of the socket.
        max_bytes: The largest answer that is read.
    """

    errors = (OSError, struct.error)

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes

    def exchange(self, target: str, body: bytes, key: Secret, deadline: float) -> Answer:
        channel = self._channel or self._dial(key, deadline)
        channel.send(b"%s\n%s" % (target.encode(), body), deadline)
        answer = channel.receive(deadline)
        return Answer(STATUS.unpack_from(answer)[0], answer[STATUS.size :])

    def _dial(self, key: Secret, deadline: float) -> Channel:
        limit = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(sock, self._max_bytes + STATUS.size)
        self.keep(channel)
        sock.settimeout(max(0.001, limit - time.monotonic()))
        sock.connect(self._path)
        channel.introduce(key, limit)
        return channel
