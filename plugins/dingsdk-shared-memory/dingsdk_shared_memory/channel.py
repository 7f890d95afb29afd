"""Messages on a local socket, between processes of one user that know the run's secret.

A message is its length, uint32 little endian, and its bytes. A request is ``<target>\\n<body>``,
an answer its status, uint16, and its body. A connection begins with a handshake::

    master: GREETING, nonce
    worker: nonce, HMAC-SHA256(secret, "worker" + both nonces)
    master: HMAC-SHA256(secret, "master" + both nonces), or as many zeros for a wrong one

Nobody can take over a local socket that is connected, so that messages need no signatures.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time

from dingsdk.worker.comm.requests import ForeignAnswerError, LinkError, Secret

GREETING = b"dingsdk shared_memory 1\n"
"""The number is the version of the protocol."""
NONCE_BYTES = MAC_BYTES = 32
"""The random number, and the signature, by which each end proves that it knows the secret."""
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_CHUNK_BYTES = 64 << 10
"""How much is read from the socket at once."""
_REFUSED = bytes(MAC_BYTES)


class Channel:
    """One end of a connection; one thread at a time may receive, and one send.

    Args:
        sock: The connected socket; the channel closes it.
        max_bytes: Largest message to receive.
    """

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self._sock = sock
        self._max_bytes = max_bytes
        self._received = bytearray()

    def send(self, content: bytes, deadline: float) -> None:
        """Send a message. Raises OSError."""
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, deadline: float | None, timeout_s: float = 0.0) -> bytes:
        """Return the next message.

        Args:
            deadline: By ``time.monotonic``. None: wait for the first byte without a limit.
            timeout_s: Without a deadline, how long the rest of the message may take.

        Raises:
            OSError: the other end closed, or did not send in time.
            LinkError: the message is too long.
        """
        if deadline is None:
            if not self._received:
                self._sock.settimeout(None)
                self._fill()
            deadline = time.monotonic() + timeout_s
        length = _LENGTH.unpack(self.receive_exactly(_LENGTH.size, deadline))[0]
        if length > self._max_bytes:
            raise LinkError(f"a message of {length} bytes; at most {self._max_bytes} are read")
        return self.receive_exactly(length, deadline)

    def receive_exactly(self, count: int, deadline: float) -> bytes:
        """Return that many bytes. Raises OSError."""
        while len(self._received) < count:
            self._sock.settimeout(_left(deadline))
            self._fill()
        content = bytes(self._received[:count])
        del self._received[:count]
        return content

    def shut_down(self) -> None:
        """End calls that wait here in other threads."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it ended by itself

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def greet(self, secret: Secret, deadline: float) -> bool:
        """Do the master's part of the handshake; False if the peer does not know the secret.

        Raises:
            OSError: the peer closed the connection, or was too slow.
        """
        self._check_peer()
        key, nonce = secret.reveal(), secrets.token_bytes(NONCE_BYTES)
        self._send_raw(GREETING + nonce, deadline)
        theirs = self.receive_exactly(NONCE_BYTES + MAC_BYTES, deadline)
        nonces = nonce + theirs[:NONCE_BYTES]
        is_ours = hmac.compare_digest(theirs[NONCE_BYTES:], _mac(key, b"worker", nonces))
        self._send_raw(_mac(key, b"master", nonces) if is_ours else _REFUSED, deadline)
        return is_ours

    def introduce(self, secret: Secret, deadline: float) -> None:
        """Do the worker's part of the handshake.

        Raises:
            ForeignAnswerError: the other end does not know the secret, or is another version.
            OSError: it did not answer in time.
        """
        self._check_peer()
        key, nonce = secret.reveal(), secrets.token_bytes(NONCE_BYTES)
        greeting = self.receive_exactly(len(GREETING), deadline)
        if greeting != GREETING:
            raise ForeignAnswerError(f"it greets with {greeting!r}, not {GREETING!r}")
        nonces = self.receive_exactly(NONCE_BYTES, deadline) + nonce
        self._send_raw(nonce + _mac(key, b"worker", nonces), deadline)
        answer = self.receive_exactly(MAC_BYTES, deadline)
        if not hmac.compare_digest(answer, _mac(key, b"master", nonces)):
            raise ForeignAnswerError("the master and this process hold different secrets")

    def _check_peer(self) -> None:
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(found)[1]
        if user != os.geteuid():
            raise ForeignAnswerError(f"the other end is user {user}, we are {os.geteuid()}")

    def _send_raw(self, content: bytes, deadline: float) -> None:
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(content)

    def _fill(self) -> None:
        content = self._sock.recv(_CHUNK_BYTES)
        if not content:
            raise ConnectionResetError("the other end closed the connection")
        self._received += content


def _mac(key: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, GREETING + side + nonces, "sha256")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left
