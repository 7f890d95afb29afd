"""The HTTP server alone, with test applications."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from dingsdk_flask_fs.server import HttpServer, _Channel, _Dispatcher

SOON_S = 0.5
"""Less than the loop sleeps if it is not woken."""
LARGE = 8 << 20


@pytest.fixture
def link() -> Iterator[socket.socket]:
    """A connection to a server whose answers have the number of bytes given in the path."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        size = int(environ["PATH_INFO"].strip("/"))
        start_response("200 OK", [("Content-Length", str(size))])
        return [b"x" * size] if size else []

    server = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    server.start(app)
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as link:
        yield link
    assert server.close()


def slow_peer(age_s: float | None) -> Any:
    """Return a connection whose request began to arrive this long ago."""
    peer: Any = _Channel.__new__(_Channel)
    peer.begun_at = None if age_s is None else time.monotonic() - age_s
    peer.will_close, peer.total_outbufs_len = False, 0
    return peer


def test_request_must_arrive_within_ten_seconds_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    monkeypatch.setattr("dingsdk_flask_fs.server.time", SimpleNamespace(monotonic=lambda: 100.0))
    peers = [slow_peer(None) for _ in range(2)]
    for peer, begun_at in zip(peers, (90.0, 89.5), strict=True):
        peer.begun_at = begun_at
    server._map = dict(enumerate(peers))
    server._sweep()
    assert [peer.will_close for peer in peers] == [False, True]
    server._socket.close()


def test_server_starts_once_and_not_after_its_close() -> None:
    server = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    server.start(lambda *given: [])
    loop = server._loop
    assert loop is not None
    server.start(lambda *given: [])
    assert server._loop is loop
    assert server.close()
    closed = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    assert closed.close()
    closed.start(lambda *given: [])
    assert closed._loop is None


def test_connection_is_not_late_between_two_requests() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "0")])
        return []

    server = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    server.start(app)
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as link:
        deadline = time.monotonic() + 5.0
        for is_late in (True, False, True):
            if is_late:
                link.sendall(b"GET /0 HTTP/1.1\r\n")  # the rest follows later
            else:
                link.sendall(b"Host: 127.0.0.1\r\n\r\n")
                assert sizes_of(link, 1) == [0]
            while [each.begun_at is not None for each in server._channels()] != [is_late]:
                assert time.monotonic() < deadline
                time.sleep(0.005)
    assert server.close()


def test_unsent_answers_are_kept_for_a_limited_time_after_the_close() -> None:
    server = HttpServer("127.0.0.1", 0, threads=5, connections=16, max_bytes=1 << 20)
    peer = slow_peer(None)
    server._map = {0: slow_peer(None), 1: peer}
    for size, left_s, has_unsent in ((1, 60.0, True), (0, 60.0, False), (1, -1.0, False)):
        peer.total_outbufs_len, server._flush_until = size, time.monotonic() + left_s
        assert server._has_unsent() is has_unsent
    assert server.close()


def test_unserved_requests_are_cancelled_at_the_close() -> None:
    dispatcher, cancelled = _Dispatcher(), list[int]()
    for number in range(3):
        dispatcher.add_task(SimpleNamespace(cancel=lambda n=number: cancelled.append(n)))
    assert dispatcher.end(time.monotonic())
    assert cancelled == [0, 1, 2]


def test_threads_of_a_server_keep_no_process_alive(link: socket.socket) -> None:
    names = ("http-server", "http-0")
    threads = [each for each in threading.enumerate() if each.name in names]
    assert [each.daemon for each in threads] == [True, True]


def ask(link: socket.socket, *sizes: int) -> None:
    requests = (f"GET /{size} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" for size in sizes)
    link.sendall("".join(requests).encode())


def sizes_of(link: socket.socket, count: int) -> list[int]:
    """Read answers; return the number of bytes in each body."""
    sizes = []
    with link.makefile("rb") as stream:
        for _ in range(count):
            head = iter(stream.readline, b"\r\n")
            (length,) = (line for line in head if line.startswith(b"Content-Length:"))
            sizes.append(len(stream.read(int(length.split(b":")[1]))))
    return sizes


def test_pipelined_requests_are_answered_in_order(link: socket.socket) -> None:
    link.settimeout(SOON_S)
    for _ in range(20):
        ask(link, 3, 0, 1, 2)
        assert sizes_of(link, 4) == [3, 0, 1, 2]


def test_connection_works_after_an_answer_that_was_read_late(link: socket.socket) -> None:
    for _ in range(3):
        ask(link, LARGE)
        link.recv(1, socket.MSG_PEEK)  # wait until the answer arrives and fills the socket buffers
        assert sizes_of(link, 1) == [LARGE]
        link.settimeout(SOON_S)
        ask(link, 7)
        assert sizes_of(link, 1) == [7]
        link.settimeout(5.0)
