"""Peers that are no master: they hang, drip, cut, pose and redirect."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from dingsdk_flask_fs.auth import Signer, Verifier
from dingsdk_flask_fs.connection import Connection, ForeignAnswerError, LinkError, _left
from dingsdk_flask_fs.transport import FlaskFSTransport, parse_address

from dingsdk.data import Secret
from dingsdk.errors import AuthError, WorkerLostError
from dingsdk.worker.comm import WorkerInfo

from .conftest import SECRET
from .network import IMPOSTORS, Impostor, read_message, read_request

KEY = Secret(SECRET.encode(), source="test", is_explicit=True)
SIGNER, VERIFIER = Signer(KEY), Verifier(KEY)


@pytest.fixture(params=IMPOSTORS, ids=lambda behaviour: behaviour.__name__)
def impostor(request: pytest.FixtureRequest) -> Iterator[Impostor]:
    made = Impostor(request.param)
    yield made
    made.close()


def test_no_peer_keeps_a_join_beyond_its_deadline(
    transport: FlaskFSTransport, impostor: Impostor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    end = transport.slave_end(impostor.address)
    started = time.monotonic()
    with pytest.raises(WorkerLostError):
        end.join(WorkerInfo("w0", "collector"), 0.5)
    assert time.monotonic() - started < 3.0
    end.close()


@pytest.mark.parametrize("answer", [b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"inc":1}'])
def test_answer_that_is_not_signed_is_not_believed(
    transport: FlaskFSTransport, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)

    def pose(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(answer)

    impostor = Impostor(pose)
    end = transport.slave_end(impostor.address)
    with pytest.raises(AuthError, match="did not sign"):
        end.join(WorkerInfo("w0", "collector"), 5.0)
    impostor.close()


@pytest.mark.parametrize(("header", "links"), [(b"", 1), (b"Connection: Close\r\n", 3)])
def test_connection_ends_where_the_master_says_so(header: bytes, links: int) -> None:
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
        assert link.post("/v1/turn", b"{}", SIGNER, time.monotonic() + 5.0).status == 200
    link.close()
    impostor.close()
    assert len(dialled) == links


@pytest.mark.parametrize("left_s", [5000.0, float("inf")])
def test_wait_on_a_socket_is_an_hour_at_most(left_s: float) -> None:
    assert _left(time.monotonic() + left_s) == 3600.0


def test_headers_that_are_cut_off_are_an_error_and_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def cut(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Ding-M")

    impostor = Impostor(cut)
    link = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    with pytest.raises(LinkError, match="MissingHeaderBodySeparator"):
        link.post("/v1/join", b"{}", SIGNER, time.monotonic() + 5.0)
    link.close()
    impostor.close()
    assert caplog.records == []


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
    ],
    ids=lambda answer: repr(answer[:40]),
)
def test_what_is_no_answer_is_a_failed_link(answer: bytes) -> None:
    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(answer)

    impostor = Impostor(speak)
    link = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    with pytest.raises(LinkError) as caught:
        link.post("/v1/join", b"{}", SIGNER, time.monotonic() + 5.0)
    assert not isinstance(caught.value, ForeignAnswerError)
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
def test_unsigned_answer_is_told_by_its_status_and_a_longer_one_than_asked_for_is_not_read(
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
        link.post("/v1/join", b"{}", SIGNER, time.monotonic() + 5.0)
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
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",  # not signed
        b"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n",
        b"",  # none before the deadline
    ],
    ids=["foreign", "broken", "late"],
)
def test_connection_is_ended_after_what_is_no_answer(answer: bytes) -> None:
    ends: list[bytes] = []

    def speak(link: socket.socket, over: threading.Event) -> None:
        read_request(link)
        link.sendall(answer)
        link.settimeout(10.0)
        ends.append(link.recv(1))

    impostor = Impostor(speak)
    connection = Connection(*parse_address(impostor.address), max_bytes=1 << 20)
    with pytest.raises(LinkError):
        connection.post("/v1/join", b"{}", SIGNER, time.monotonic() + (5.0 if answer else LATE_S))
    impostor.close()  # which waits until it has heard of that
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
