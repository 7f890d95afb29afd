"""Messages over a connected socket: four bytes of length, then the message."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ProtocolError

MAX_BYTES = 4 << 20
SEND_TIMEOUT_S = 5.0


class Link:
    """A connection. Any thread may send; only one thread may receive."""

    def __init__(self, connected: socket.socket) -> None:
        # Without a timeout, a peer that does not read could block a sender forever.
        connected.settimeout(SEND_TIMEOUT_S)
        self._socket = connected
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message of plain data.

        Raises:
            ProtocolError: The message is not plain data, or too large.
            OSError: The link is cut, or the peer does not read in time.
        """
        data = encode_message(message)
        if len(data) > MAX_BYTES:
            raise ProtocolError(f"a message of {len(data)} bytes", where="$")
        with self._sending:
            self._socket.sendall(len(data).to_bytes(4, "big") + data)

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: The link has ended.
            OSError: The connection failed.
            ProtocolError: The message is damaged or too large.
        """
        size = int.from_bytes(self._read(4), "big")
        if size > MAX_BYTES:
            raise ProtocolError(f"a message of {size} bytes", where="$")
        return decode_message(self._read(size), MAX_BYTES)

    def cut(self) -> None:
        """End the link; a thread that waits in ``receive`` gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; called by the receiving thread when it ends."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                data = self._socket.recv(min(size - len(received), 65536))
            except TimeoutError:
                continue  # the timeout is for sending only
            if not data:
                raise EOFError("the other side is gone")
            received += data
        return bytes(received)
