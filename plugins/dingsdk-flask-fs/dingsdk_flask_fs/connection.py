"""One kept-alive connection to the master, on which every wait ends at a deadline.

It speaks as much of HTTP as our own server does, and nothing that would make it read more or
go elsewhere: no redirects, no proxies, no encodings, no answers without a length. That is also
what lets one deadline hold over connecting, sending and reading, byte by byte.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from dataclasses import dataclass

from dingsdk_flask_fs.auth import MAC_HEADER, SKEW_S, Signer

CONNECT_TIMEOUT_S = 2.0
HEAD_BYTES = 16 << 10
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2})(?: [^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,12}")


class LinkError(Exception):
    """No answer, or none of ours: the same request may be sent again."""


class ForeignAnswerError(LinkError):
    """Something answered that does not know the secret, or does not accept ours."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A genuine answer of the master."""

    status: int
    body: bytes


class Connection:
    """Thread safe: requests on one connection wait for each other.

    Args:
        host: As configured here; nothing that is received changes it.
        port: Likewise.
        max_bytes: The largest answer that is read.
    """

    def __init__(self, host: str, port: int, max_bytes: int) -> None:
        self._address = (host, port)
        self._host_header = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_closed = False

    def post(self, target: str, body: bytes, signer: Signer, deadline: float) -> Reply:
        """Send a request, return its answer.

        Args:
            target: The path.
            body: The message.
            signer: Signs the request, and checks the answer.
            deadline: On the monotonic clock.

        Raises:
            LinkError: there was none before the deadline.
            ForeignAnswerError: it was not signed with our secret.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LinkError("the connection is busy")
        try:
            link = self._socket
            if link is not None and not _is_quiet(link):
                # The server closed it while it was idle, as servers do.
                self._hang_up()
                link = None
            authorization, nonce = signer.sign("POST", target, body)
            head = (
                f"POST {target} HTTP/1.1\r\nHost: {self._host_header}\r\n"
                f"Authorization: {authorization}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            try:
                if link is None:
                    link = self._dial(deadline)
                link.settimeout(_left(deadline))
                link.sendall(head.encode("ascii") + body)
                status, headers, answer, is_last = self._read(link, deadline)
            except (OSError, LinkError) as error:
                self._hang_up()
                raise LinkError(str(error) or type(error).__name__) from error
            except BaseException:
                self._hang_up()
                raise
            if is_last:
                self._hang_up()
            mac = headers.get(MAC_HEADER.lower().encode(), b"").decode("latin-1")
            if not signer.is_answer(mac, nonce, status, answer):
                self._hang_up()
                raise _foreign(status, headers)
            return Reply(status, answer)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the request that is under way, and every later one, with LinkError."""
        with self._state:
            self._is_closed = True
            if self._socket is not None:
                _shut(self._socket)
        # Whoever is in a request closes the descriptor itself; it may not be reused before.
        if self._lock.acquire(timeout=1.0):
            try:
                self._hang_up()
            finally:
                self._lock.release()

    # -----------------------------------------------------------------------------------------
    def _dial(self, deadline: float) -> socket.socket:
        link = socket.create_connection(
            self._address, timeout=min(CONNECT_TIMEOUT_S, _left(deadline))
        )
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A dial to a free port of this host may find itself at the other end.
            is_own = link.getsockname() == link.getpeername()
        except OSError:
            is_own = True
        with self._state:
            if self._is_closed or is_own:
                link.close()
                raise LinkError("the connection is closed")
            self._socket = link
        return link

    def _hang_up(self) -> None:
        with self._state:
            link, self._socket = self._socket, None
        if link is not None:
            link.close()

    def _read(
        self, link: socket.socket, deadline: float
    ) -> tuple[int, dict[bytes, bytes], bytes, bool]:
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            if len(received) > HEAD_BYTES:
                raise LinkError("the head of the answer is too long")
            received += _receive(link, deadline)
        status, headers = _parse_head(bytes(received[:end]))
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not _LENGTH.fullmatch(length):
            raise LinkError("an answer without a length")
        size = int(length)
        if size > self._max_bytes:
            raise LinkError(f"an answer of {size} bytes; at most {self._max_bytes} are read")
        del received[: end + 4]
        while len(received) < size:
            received += _receive(link, deadline)
        if len(received) > size:
            raise LinkError("more was sent than asked for")
        is_last = headers.get(b"connection", b"").lower() == b"close"
        return status, headers, bytes(received), is_last


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        raise LinkError(f"no HTTP/1.1 answer: {first[:40]!r}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        key = name.lower()
        if not colon or key in headers:
            raise LinkError(f"a malformed or repeated header: {line[:40]!r}")
        headers[key] = value.strip()
    return int(found[1]), headers


def _receive(link: socket.socket, deadline: float) -> bytes:
    link.settimeout(_left(deadline))
    data = link.recv(65536)
    if not data:
        raise LinkError("the connection ended within an answer")
    return data


def _is_quiet(link: socket.socket) -> bool:
    """Whether nothing waits to be read on an idle connection, not even its end."""
    link.setblocking(False)
    try:
        link.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise LinkError("no answer in time")
    return left


def _shut(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it ended by itself


def _foreign(status: int, headers: dict[bytes, bytes]) -> ForeignAnswerError:
    if status != 401:
        return ForeignAnswerError(f"an answer (status {status}) that the master did not sign")
    clock = headers.get(b"date", b"").decode("latin-1")
    return ForeignAnswerError(
        "the master does not accept our signature: its secret is another one, or the clocks "
        f"differ by over {SKEW_S} s (its clock says {clock or 'nothing'})"
    )
