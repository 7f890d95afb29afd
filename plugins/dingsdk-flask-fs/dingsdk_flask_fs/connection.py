"""One kept-alive connection to the master, on which every wait ends at a deadline.

urllib3 implements HTTP; here it follows no redirects, uses no proxies and decodes nothing. Its
timeouts apply to each read, so a peer that sends single bytes could extend a request without limit.
Therefore its socket gets the deadline of the whole request.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util.response import assert_header_parsing

from dingsdk.worker.comm.requests import Answer, ForeignAnswerError, LinkError
from dingsdk_flask_fs.auth import MAC_HEADER, SKEW_S, Signer

CONNECT_TIMEOUT_S = 2.0
"""How long connecting to the master may take."""
_LENGTH = re.compile(r"[0-9]{1,12}")


class Connection:
    """A connection to the master. Thread safe: requests on one connection wait for each other.

    Args:
        host: The configured host; received data never changes it.
        port: The configured port.
        max_bytes: Size of the largest answer that is read.
    """

    def __init__(self, host: str, port: int, max_bytes: int) -> None:
        self._address = (host, port)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._link: _Link | None = None
        self._is_closed = False

    def post(self, target: str, body: bytes, key: Signer, deadline: float) -> Answer:
        """Send a request and return its answer.

        Args:
            target: The path.
            body: The message.
            key: Signs the request, and checks the answer.
            deadline: Time on the monotonic clock.

        Raises:
            LinkError: there was no answer before the deadline.
            ForeignAnswerError: the answer was not signed with our secret.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LinkError("the connection is busy")
        try:
            authorization, nonce = key.sign("POST", target, body)
            try:
                link = self._linked(deadline)
                status, headers, answer = self._exchange(link, target, body, authorization)
            except BaseException as error:
                self._hang_up()
                if isinstance(error, OSError | HTTPError | http.client.HTTPException | LinkError):
                    raise LinkError(str(error) or type(error).__name__) from error
                raise
            if headers.get("connection", "").lower() == "close":
                self._hang_up()
            if not key.is_answer(headers.get(MAC_HEADER, ""), nonce, status, answer):
                self._hang_up()
                raise _foreign(status, headers)
            return Answer(status, answer)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the current request and every later one with LinkError."""
        with self._state:
            self._is_closed = True
            if self._link is not None:
                self._link.shut()
        # The thread in a request closes the descriptor itself, so that it is not reused too early.
        if self._lock.acquire(timeout=1.0):
            self._hang_up()
            self._lock.release()

    def _linked(self, deadline: float) -> _Link:
        """Return a connection whose waits end at the deadline; connect again if needed."""
        link = self._link
        if link is not None and not link.is_connected:
            # The server closed it while it was idle, as servers do.
            self._hang_up()
            link = None
        if link is None:
            link = _Link(*self._address, timeout=min(CONNECT_TIMEOUT_S, _left(deadline)))
            link.connect()
            with self._state:
                if self._is_closed or link.is_own_echo:
                    link.close()
                    raise LinkError("the connection is closed")
                self._link = link
        link.hold_to(deadline)
        return link

    def _hang_up(self) -> None:
        with self._state:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _exchange(
        self, link: _Link, target: str, body: bytes, authorization: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Authorization": authorization, "Content-Type": "application/json"}
        link.request("POST", target, body, headers, preload_content=False, decode_content=False)
        with link.getresponse() as answer:  # an answer without a length would keep the socket
            length = answer.headers.get("content-length", "")
            if "transfer-encoding" in answer.headers or not _LENGTH.fullmatch(length):
                raise LinkError("an answer without a length")
            if int(length) > self._max_bytes:
                raise LinkError(f"an answer of {length} bytes; at most {self._max_bytes} are read")
            return answer.status, answer.headers, answer.read()


class _WholeHead(http.client.HTTPResponse):
    """Refuses headers that were cut off; urllib3 otherwise logs them at length and continues."""

    def begin(self) -> None:
        super().begin()
        assert_header_parsing(self.msg)


class _Link(HTTPConnection):
    """urllib3's connection, on a socket with one deadline for all its operations."""

    sock: Any
    response_class = _WholeHead

    def _new_conn(self) -> socket.socket:
        return _DeadlineSocket(fileno=super()._new_conn().detach())

    def hold_to(self, deadline: float) -> None:
        self.sock.deadline = deadline

    @property
    def is_own_echo(self) -> bool:
        """Whether the socket is connected to itself, as can happen with a free local port."""
        try:
            return bool(self.sock.getsockname() == self.sock.getpeername())
        except OSError:
            return True

    def shut(self) -> None:
        """End all waits on the socket, from another thread; the thread that uses it closes it."""
        with contextlib.suppress(OSError):  # it has already ended
            self.sock.shutdown(socket.SHUT_RDWR)


class _DeadlineSocket(socket.socket):
    deadline = float("inf")

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self.settimeout(_left(self.deadline))
        super().sendall(*args, **kwargs)


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
