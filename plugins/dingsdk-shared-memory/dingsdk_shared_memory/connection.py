"""A worker's connection to the master's socket."""

from __future__ import annotations

import socket
import struct
import threading
import time

from dingsdk.worker.comm.requests import Answer, LinkError, Secret
from dingsdk_shared_memory.channel import Channel

CONNECT_TIMEOUT_S = 2.0
"""How long a connection to the master may take."""
STATUS = struct.Struct("<H")


class Connection:
    """A connection to the master. Thread safe: its requests wait for each other.

    Args:
        path: Path of the socket.
        max_bytes: The largest answer that is read.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._channel: Channel | None = None
        self._is_closed = False

    def post(self, target: str, body: bytes, key: Secret, deadline: float) -> Answer:
        """Send a request and return its answer; connect first if there is no connection.

        Raises:
            LinkError: there was no answer before the deadline (monotonic).
            ForeignAnswerError: the master does not know the secret, or is another user's.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LinkError("the connection is busy")
        try:
            channel = self._channel or self._dial(key, deadline)
            channel.send(b"%s\n%s" % (target.encode(), body), deadline)
            answer = channel.receive(deadline)
            return Answer(STATUS.unpack_from(answer)[0], answer[STATUS.size :])
        except (OSError, struct.error) as error:
            self._hang_up()
            raise LinkError(str(error) or type(error).__name__) from error
        except BaseException:
            self._hang_up()
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the request in progress, and every later one, with LinkError."""
        with self._state:
            self._is_closed = True
            if self._channel is not None:
                self._channel.shut_down()
        # A thread in a request closes the descriptor itself; it must not be reused before that.
        if self._lock.acquire(timeout=1.0):
            self._hang_up()
            self._lock.release()

    def _dial(self, key: Secret, deadline: float) -> Channel:
        limit = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(sock, self._max_bytes + STATUS.size)
        with self._state:
            if self._is_closed:
                channel.close()
                raise LinkError("the connection is closed")
            self._channel = channel
        sock.settimeout(max(0.001, limit - time.monotonic()))
        sock.connect(self._path)
        channel.introduce(key, limit)
        return channel

    def _hang_up(self) -> None:
        with self._state:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
