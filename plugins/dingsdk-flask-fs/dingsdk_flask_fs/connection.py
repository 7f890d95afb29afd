"""One kept-alive connection to the master, on which every wait ends at a deadline.

It speaks the HTTP that the two ends need and nothing more: a request leaves in one piece, as each
piece wakes the master's server once more, and an answer has a length. There are no redirects and
no proxies, and a peer that drips bytes is cut off at the deadline of the whole request.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dingsdk_flask_fs.auth import MAC_HEADER, SKEW_S, Signer

CONNECT_TIMEOUT_S = 2.0
HEAD_BYTES = 16 << 10
_STATUS = re.compile(r"HTTP/1\.[01] ([0-9]{3})(?: .*)?")
_LENGTH = re.compile(r"[0-9]{1,12}")


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
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._link: _Link | None = None
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
            authorization, nonce = signer.sign("POST", target, body)
            try:
                link = self._linked(deadline)
                status, headers, answer = link.exchange(target, body, authorization, deadline)
            except (OSError, UnicodeError, LinkError) as error:
                self._hang_up()
                raise LinkError(str(error) or type(error).__name__) from error
            except BaseException:
                self._hang_up()
                raise
            if headers.get("connection", "").lower() == "close":
                self._hang_up()
            if not signer.is_answer(headers.get(MAC_HEADER.lower(), ""), nonce, status, answer):
                self._hang_up()
                raise _foreign(status, headers)
            return Reply(status, answer)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the request that is under way, and every later one, with LinkError."""
        with self._state:
            self._is_closed = True
            if self._link is not None:
                self._link.shut()
        # Whoever is in a request closes the descriptor itself; it may not be reused before.
        if self._lock.acquire(timeout=1.0):
            try:
                self._hang_up()
            finally:
                self._lock.release()

    # -----------------------------------------------------------------------------------------
    def _linked(self, deadline: float) -> _Link:
        """Return a connection whose waits end at the deadline, dialled anew where needed."""
        link = self._link
        if link is not None and not link.is_quiet:
            # The server closed it while it was idle, as servers do.
            self._hang_up()
            link = None
        if link is None:
            link = _Link(*self._address, self._max_bytes, min(CONNECT_TIMEOUT_S, _left(deadline)))
            with self._state:
                if self._is_closed or link.is_own_echo:
                    link.close()
                    raise LinkError("the connection is closed")
                self._link = link
        return link

    def _hang_up(self) -> None:
        with self._state:
            link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link:
    """A dialled connection.

    Raises:
        OSError: nobody accepted it in time.
        UnicodeError: the host is no name.
    """

    def __init__(self, host: str, port: int, max_bytes: int, timeout_s: float) -> None:
        self._name = f"[{host}]:{port}" if ":" in host else f"{host.encode('idna').decode()}:{port}"
        self._max_bytes = max_bytes
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(
        self, target: str, body: bytes, authorization: str, deadline: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request; return status, headers by lower-case name, and body of its answer.

        Raises:
            LinkError: what came is no answer, or a larger one than is read.
            OSError: the connection ended, or the time was over.
        """
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {self._name}\r\nAuthorization: {authorization}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(head.encode() + body)
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            if len(received) > HEAD_BYTES:
                raise LinkError("an answer whose headers do not end")
            received += self._receive(deadline)
        first, *lines = received[:end].decode("latin-1").split("\r\n")
        status = _STATUS.fullmatch(first)
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        length = headers.get("content-length", "")
        if status is None or "transfer-encoding" in headers or not _LENGTH.fullmatch(length):
            raise LinkError("an answer without a status or a length")
        if int(length) > self._max_bytes:
            raise LinkError(f"an answer of {length} bytes; at most {self._max_bytes} are read")
        whole = end + 4 + int(length)
        while len(received) < whole:
            received += self._receive(deadline)
        if len(received) > whole:
            raise LinkError("an answer that is longer than it says")
        return int(status[1]), headers, bytes(received[end + 4 :])

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that was not asked for."""
        self._socket.settimeout(0.0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def is_own_echo(self) -> bool:
        """Whether a dial to a free port of this host found itself at the other end."""
        try:
            return bool(self._socket.getsockname() == self._socket.getpeername())
        except OSError:
            return True

    def shut(self) -> None:
        """End whatever waits on the socket, from another thread; it is closed by its user."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it ended by itself

    def close(self) -> None:
        self._socket.close()

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(_left(deadline))
        chunk = self._socket.recv(65536)
        if not chunk:
            raise LinkError("the connection ended before the answer did")
        return chunk


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return min(left, 3600.0)


def _foreign(status: int, headers: Mapping[str, str]) -> LinkError:
    if status == 429:
        return LinkError("the master is busy refusing others from this host's address")
    if status != 401:
        return ForeignAnswerError(f"an answer (status {status}) that the master did not sign")
    return ForeignAnswerError(
        "the master does not accept our signature: its secret is another one, or the clocks "
        f"differ by over {SKEW_S} s (its clock says {headers.get('date', 'nothing')})"
    )
