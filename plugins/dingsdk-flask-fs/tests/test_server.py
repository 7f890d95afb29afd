"""The HTTP server alone, with test applications."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dingsdk_flask_fs.server import HttpServer

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
