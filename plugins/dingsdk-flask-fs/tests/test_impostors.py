"""Servers that are not a master: they hang, send slowly, cut connections, lie or redirect."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from dingsdk_flask_fs.auth import Verifier
from dingsdk_flask_fs.connection import Connection, ForeignAnswerError, LinkError
from dingsdk_flask_fs.transport import FlaskFSTransport, parse_address

from dingsdk.errors import AuthError, WorkerLostError
from dingsdk.runtime import Secret
from dingsdk.worker.comm import WorkerInfo

from .conftest import SECRET
from .network import IMPOSTORS, Impostor, read_message, read_request

KEY = Secret(SECRET.encode(), source="test", is_explicit=True)
VERIFIER = Verifier(KEY)


@pytest.fixture(params=IMPOSTORS, ids=lambda behaviour: behaviour.__name__)
def impostor(request: pytest.FixtureRequest) -> Iterator[Impostor]:
    made = Impostor(request.param)
    yield made
    made.close()


def test_join_ends_at_its_deadline_with_any_peer(
    transport: FlaskFSTransport, impostor: Impostor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    end = transport.slave_end(impostor.address)
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.join(WorkerInfo("w0", "collector"), 0.5)
    assert time.monotonic() - started < 3.0
    end.close()


@pytest.mark.parametrize(("header", "links"), [(b"", 1), (b"Connection: Close\r\n", 3)])
def test_connection_is_closed_if_the_answer_asks_for_it(header: bytes, links: int) -> None:
    dialled: list[socket.socket] = []

    def answer(link: socket.socket, over: threading.Event) -> None:
        dialled.append(link)
        while nonce := re.search(rb"nonce=([^,]*),", read_message(link)):
            mac = VERIFIER.sign_answer(nonce[1].decode(), 200, b"{}").encode()
            link.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
                b"%sX-Ding-Mac: %s\r\n\r\n{}" % (header, mac)
            )

    impostor = Impostor(answer)
    link = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    for _ in range(3):
        assert link.post("/v1/turn", b"{}", KEY, time.monotonic() + 5.0).status == 200
    link.close()
    impostor.close()
    assert len(dialled) == links


@pytest.mark.parametrize(
    "answer",
    [
        b"\r\n\r\n",
        b"220 mail ready\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/2 200\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: \xff\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Ding-M",
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_invalid_answer_is_a_link_error(answer: bytes, caplog: pytest.LogCaptureFixture) -> None:
    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(answer)

    impostor = Impostor(speak)
    link = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    with pytest.raises(LinkError) as caught:
        link.post("/v1/join", b"{}", KEY, time.monotonic() + 5.0)
    assert not isinstance(caught.value, ForeignAnswerError)
    assert "parse headers" not in caplog.text  # of urllib3, with a traceback
    link.close()
    impostor.close()


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        (200, ForeignAnswerError, "status 200"),
        (429, LinkError, "busy refusing others"),
        (401, ForeignAnswerError, "its clock says Thu, 01 Jan 1970 00:00:00 GMT"),
        (503, ForeignAnswerError, "status 503"),
    ],
)
@pytest.mark.parametrize("length", [4, 5])
def test_unsigned_answer_is_reported_by_its_status_and_read_up_to_the_limit(
    status: int, error: type[LinkError], told: str, length: int
) -> None:
    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        date = "Thu, 01 Jan 1970 00:00:00 GMT"
        head = f"HTTP/1.1 {status} Told\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n"
        link.sendall(head.encode() + b"x" * length)

    impostor = Impostor(speak)
    link = Connection(*parse_address(impostor.address), max_bytes=4)
    with pytest.raises(LinkError) as caught:
        link.post("/v1/join", b"{}", KEY, time.monotonic() + 5.0)
    link.close()
    impostor.close()

    if length > 4:
        error, told = LinkError, "an answer of 5 bytes; at most 4 are read"
    assert type(caught.value) is error
    assert told in str(caught.value)


LATE_S = 0.3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",  # without a signature
        b"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n",
        b"",  # no answer before the deadline
    ],
    ids=["foreign", "broken", "late"],
)
def test_connection_is_closed_after_an_invalid_answer(answer: bytes) -> None:
    ends: list[bytes] = []

    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(answer)
        link.settimeout(10.0)
        ends.append(link.recv(1))

    impostor = Impostor(speak)
    connection = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    with pytest.raises(LinkError):
        connection.post("/v1/join", b"{}", KEY, time.monotonic() + (5.0 if answer else LATE_S))
    impostor.close()  # waits until the impostor has seen the end of the connection
    heard = list(ends)
    connection.close()
    assert heard == [b""]


def test_redirect_is_not_followed(
    transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    trap = socket.create_server(("127.0.0.1", 0))
    target = f"http://127.0.0.1:{trap.getsockname()[1]}/v1/join".encode()

    def redirect(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(
            b"HTTP/1.1 307 Moved\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"
        )

    impostor = Impostor(redirect)
    end = transport.slave_end(impostor.address)
    with pytest.raises(AuthError):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    trap.settimeout(0.1)
    with pytest.raises(TimeoutError):
        trap.accept()
    trap.close()
    impostor.close()
