"""Messages over a socket between two processes that know the same secret.

A message is ``magic, 4 bytes | head length, uint32 | frame length, uint64 | head | frame``. The
head is a ``Head`` as strict JSON, padded with spaces to a multiple of 64 bytes, so that the arrays
of the frame are aligned. The frame is any bytes. Received data is never executed.

Both sides take turns: nobody sends a message before the last one is answered.

A connection begins with a handshake: both sides prove by HMAC-SHA256 over two nonces that they
know the secret. Before that, at most 4 KiB are read.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta

from dingsdk.data.container import decode_frame, encode_frame
from dingsdk.errors import AuthError, ProtocolError
from dingsdk.runtime.connections import GREETING_S, parse_address
from dingsdk.runtime.files import Buffer
from dingsdk.runtime.secret import Secret

MAGIC = b"DCH1"

_FIXED = struct.Struct("<4sIQ")
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_ALIGNMENT = 64
_HEAD_BYTES = 16 << 10
"""Largest head (JSON) of a message."""
_KEEPALIVE = 5
"""Seconds of silence after which the system asks whether the other host is alive, how often it
asks, and the seconds between."""
_GREETING_BYTES = 4 << 10
"""Largest message before the peer has proved that it knows the secret."""

_Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Mac = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Head(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True):
    """The typed part of a message."""


class Welcome(Head, frozen=True):
    """The server's first message."""

    nonce: _Nonce


class Hello(Head, frozen=True):
    """The client's answer; ``client`` is its name in all of its connections."""

    client: _Nonce
    nonce: _Nonce
    mac: _Mac


class Accepted(Head, frozen=True):
    """The server's proof that it knows the secret."""

    mac: _Mac


class Refused(Head, frozen=True):
    """The request failed; ``code`` is the name of the error class. Nothing was changed."""

    code: str
    text: str


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode_value(kind: str, value: Any) -> list[Buffer]:
    """Return a value as a frame; raises SchemaMismatchError."""
    return encode_frame(kind, value)[0]


def decode_value(kind: str, frame: memoryview) -> Any:
    """Return the content of a frame, its arrays as views; raises DataCorruptError."""
    return decode_frame(kind, frame, len(frame))


class Channel:
    """One end of a connection; owns the socket. Not thread-safe.

    ``max_bytes`` is the size of the largest frame that is read.
    """

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self._sock = sock
        self._max_bytes = _GREETING_BYTES
        self._granted_bytes = max_bytes
        self._start = memoryview(bytearray(_GREETING_BYTES))  # a small message is there in one call
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
                sock.setsockopt(socket.IPPROTO_TCP, option, _KEEPALIVE)

    @classmethod
    def within_host(cls, sock: socket.socket, max_bytes: int) -> Self:
        """Return the channel over one end of a ``socketpair``, which needs no handshake."""
        channel = cls(sock, max_bytes)
        channel._max_bytes = max_bytes
        return channel

    @classmethod
    def to_server(
        cls, address: str, secret: Secret, client: str, max_bytes: int, timeout_s: float
    ) -> Self:
        """Connect to a server; raises as ``parse_address`` and ``greet``."""
        channel = cls(socket.create_connection(parse_address(address), timeout_s), max_bytes)
        try:
            channel.greet(secret, client, timeout_s)
        except BaseException:
            channel.close()
            raise
        return channel

    def welcome(self, secret: Secret, timeout_s: float = GREETING_S) -> str:
        """Do the server's part of the handshake; return the client's name.

        Raises:
            AuthError: the peer does not know the secret, and a refusal was sent to it; or the
                socket is local, and the peer is another user.
        """
        self._check_user()
        mine = secrets.token_hex(16)
        self.send(Welcome(mine), timeout_s=timeout_s)
        hello, _ = self.receive(Hello, timeout_s)
        expected = _proof(secret, "client", mine, hello.nonce, hello.client)
        if not hmac.compare_digest(expected, hello.mac):
            error = AuthError("a client does not know the secret", reason="mac")
            with contextlib.suppress(OSError):
                self.send(Refused(error.code, "refused"), timeout_s=timeout_s)
            raise error
        proof = _proof(secret, "server", mine, hello.nonce, hello.client)
        self.send(Accepted(proof), timeout_s=timeout_s)
        self._max_bytes = self._granted_bytes
        return str(hello.client)

    def greet(self, secret: Secret, client: str, timeout_s: float) -> None:
        """Do the client's part of the handshake.

        Raises:
            AuthError: the server does not know the secret, or refused the client's proof; or the
                socket is local, and the server is another user.
        """
        self._check_user()
        welcome, _ = self.receive(Welcome, timeout_s)
        mine = secrets.token_hex(16)
        proof = _proof(secret, "client", welcome.nonce, mine, client)
        self.send(Hello(client, mine, proof), timeout_s=timeout_s)
        answer, _ = self.receive(Accepted | Refused, timeout_s)
        expected = _proof(secret, "server", welcome.nonce, mine, client)
        if isinstance(answer, Refused) or not hmac.compare_digest(expected, answer.mac):
            raise AuthError(
                f"the server refused the secret of {secret.source}; give the one that it was "
                "started with",
                reason="mac",
            )
        self._max_bytes = self._granted_bytes

    def send(self, head: Head, frame: Sequence[Buffer] = (), *, timeout_s: float) -> None:
        """Send a message.

        Raises:
            OSError: the connection is lost, or the peer does not read the message in time.
        """
        text = msgspec.json.encode(head)
        text += b" " * (-len(text) % _ALIGNMENT)
        size = sum(memoryview(each).nbytes for each in frame)
        self._sock.settimeout(timeout_s)
        parts = [memoryview(_FIXED.pack(MAGIC, len(text), size) + text)]
        parts += [memoryview(each).cast("B") for each in frame]
        # Sends a small message in one packet, by one call.
        sent = self._sock.sendmsg(parts[:64])
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            self._sock.sendall(part[sent:])
            sent = 0

    def receive(
        self, kind: Any, timeout_s: float, idle_s: float | None = None
    ) -> tuple[Any, memoryview]:
        """Return the head and the frame of the next message; the frame is the caller's own.

        Args:
            kind: The types that the head may have.
            timeout_s: Seconds for the rest of the message to arrive, after its first byte.
            idle_s: Seconds to wait for the first byte, inf for no limit; None for ``timeout_s``.

        Raises:
            OSError: the connection is lost (ConnectionError), or too slow (TimeoutError).
            ProtocolError: the message is not valid, or too large.
        """
        wait_s = timeout_s if idle_s is None else idle_s
        self._sock.settimeout(None if wait_s == math.inf else wait_s)
        begun = self._sock.recv_into(self._start)
        if not begun:
            raise ConnectionResetError("the peer closed the connection")
        deadline = time.monotonic() + timeout_s
        if begun < _FIXED.size:
            self._fill(self._start[begun : _FIXED.size], deadline)
            begun = _FIXED.size
        magic, head_bytes, frame_bytes = _FIXED.unpack_from(self._start)
        if magic[:3] == MAGIC[:3] and magic != MAGIC:
            raise ProtocolError(
                f"the peer speaks version {magic[3:]!r} of the protocol, this side "
                f"{MAGIC[3:]!r}; install the same dingsdk on both",
                where="header",
            )
        if magic != MAGIC or head_bytes > _HEAD_BYTES or head_bytes % _ALIGNMENT:
            raise ProtocolError("these bytes are no message of a server of dingsdk", where="header")
        if frame_bytes > self._max_bytes:
            raise ProtocolError(
                f"a message of {frame_bytes} bytes; at most {self._max_bytes} are read",
                where="header",
            )
        # Not zeroed: memory that is not written yet costs nothing, however much a peer announces.
        body, there = np.empty(head_bytes + frame_bytes, np.uint8).data, begun - _FIXED.size
        if there > len(body):
            raise ProtocolError("the peer sent more before it got an answer", where="header")
        body[:there] = self._start[_FIXED.size : begun]
        self._fill(body[there:], deadline)
        decoder = _DECODERS.get(kind)
        if decoder is None:
            decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
        try:
            return decoder.decode(body[:head_bytes]), body[head_bytes:]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"the head of a message is wrong: {error}", where="head") from error

    def has_message(self, timeout_s: float) -> bool:
        """Wait for the first byte of a message, or the end of the connection; whether it came."""
        # select() refuses the descriptors from 1024 on, which a process with many files has.
        return bool(wait([self._sock], timeout_s))

    def shut_down(self) -> None:
        """End the calls of other threads that are in progress."""
        with contextlib.suppress(OSError):  # the socket is closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._sock.close()

    def _check_user(self) -> None:
        if self._sock.family != socket.AF_UNIX:
            return
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(found)[1]
        if user != os.geteuid():
            text = f"the other end is user {user}, we are {os.geteuid()}"
            raise AuthError(text, reason="user")

    def _fill(self, view: memoryview, deadline: float) -> None:
        while len(view):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the rest of a message did not arrive in time")
            self._sock.settimeout(left_s)
            count = self._sock.recv_into(view)
            if not count:
                raise ConnectionResetError("the peer closed the connection within a message")
            view = view[count:]


def _proof(secret: Secret, side: str, *names: str) -> str:
    text = "\n".join(("dingsdk channel", side, *names))
    return hmac.digest(secret.reveal(), text.encode(), "sha256").hex()
