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
import time
from collections.abc import Mapping
from typing import Any

from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util.response import assert_header_parsing

from dingsdk.worker.comm.requests import (
    Answer,
    ForeignAnswerError,
    LinkError,
    ReconnectingLink,
    Secret,
)
from dingsdk_flask_fs.auth import MAC_HEADER, SKEW_S, Signer

CONNECT_TIMEOUT_S = 2.0
"""How long connecting to the master may take."""
_LENGTH = re.compile(r"[0-9]{1,12}")


class Connection(ReconnectingLink[Secret, "_Link"]):
    """A connection to the master. Thread safe: requests on one connection wait for each other.

    Args:
        host: The configured host; received data never changes it.
        port: The configured port.
        max_bytes: Size of the largest answer that is read.
    """

    errors = (OSError, HTTPError, http.client.HTTPException)

    def __init__(self, host: str, port: int, max_bytes: int) -> None:
        super().__init__()
        self._address = (host, port)
        self._max_bytes = max_bytes
        self._secret: Secret | None = None
        self._signer: Signer

    def exchange(self, target: str, body: bytes, key: Secret, deadline: float) -> Answer:
        if self._secret is not key:
            self._secret, self._signer = key, Signer(key)
        authorization, nonce = self._signer.sign("POST", target, body)
        link = self._linked(deadline)
        sent = {"Authorization": authorization, "Content-Type": "application/json"}
        link.request("POST", target, body, sent, preload_content=False, decode_content=False)
        with link.getresponse() as answer:  # an answer without a length would keep the socket
            status, headers = answer.status, answer.headers
            length = headers.get("content-length", "")
            if "transfer-encoding" in headers or not _LENGTH.fullmatch(length):
                raise LinkError("an answer without a length")
            if int(length) > self._max_bytes:
                raise LinkError(f"an answer of {length} bytes; at most {self._max_bytes} are read")
            content = answer.read()
        if not self._signer.is_answer(headers.get(MAC_HEADER, ""), nonce, status, content):
            raise _foreign(status, headers)
        return Answer(status, content)

    def _linked(self, deadline: float) -> _Link:
        """Return a connection whose waits end at the deadline; connect again if needed."""
        link = self._channel
        if link is not None and not link.is_connected:
            # The server closed it, after an answer that said so or while it was idle.
            self.hang_up()
            link = None
        if link is None:
            link = _Link(*self._address, timeout=min(CONNECT_TIMEOUT_S, _left(deadline)))
            link.connect()
            self.keep(link)
        link.hold_to(deadline)
        return link


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
        try:
            sock = super()._new_conn()
        except HTTPError as error:
            raise error.__cause__ or error from None  # its text is plainer
        # ``sock`` is None while the body of a last answer is read.
        self._wire = _DeadlineSocket(fileno=sock.detach())
        return self._wire

    def hold_to(self, deadline: float) -> None:
        self.sock.deadline = deadline

    def shut_down(self) -> None:
        """End all waits on the socket, from another thread; the thread that uses it closes it."""
        with contextlib.suppress(OSError):  # it has already ended
            self._wire.shutdown(socket.SHUT_RDWR)


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
