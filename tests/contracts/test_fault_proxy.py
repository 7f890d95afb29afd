"""The effect of each fault of the proxy, as the client and the server see it."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from dingsdk.testing import Fault, FaultProxy, seeded_faults
from dingsdk.testing.fault_proxy import DELAY_S


class Server:
    """Answers each request with its body in upper case, and records it."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        seen = self.seen

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline():
                    size = 0
                    while (header := self.rfile.readline()) not in (b"\r\n", b""):
                        if header.lower().startswith(b"content-length:"):
                            size = int(header.split(b":")[1])
                    body = self.rfile.read(size)
                    if header == b"" or len(body) < size:
                        return  # the request is incomplete
                    seen.append(body)
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                    self.wfile.write(head.encode() + body.upper())

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def dial(address: str) -> socket.socket:
    host, port = address.rpartition("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=5.0)


def ask(link: socket.socket, body: bytes) -> bytes:
    """Return the body of the reply, or the data received until the connection ended."""
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    link.sendall(head + body)
    received = b""
    while not received.endswith(body.upper()):
        try:
            data = link.recv(1024)
        except ConnectionError:
            return received
        if not data:
            return received
        received += data
    return received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("fault", "is_answered", "served"),
    [
        (Fault.PASS, True, 1),
        (Fault.DROP, False, 0),
        (Fault.DELAY, True, 1),
        (Fault.DUPLICATE, True, 2),
        (Fault.REORDER, True, 1),
        (Fault.CUT_REQUEST, False, 0),
        (Fault.LOSE_REPLY, False, 1),
        (Fault.CUT_REPLY, False, 1),
    ],
)
def test_fault_affects_one_exchange(
    server: Server, fault: Fault, is_answered: bool, served: int
) -> None:
    with FaultProxy(server.address, [fault]) as proxy:
        with dial(proxy.address) as link:
            assert (ask(link, b"first") == b"FIRST") is is_answered
        assert server.seen == [b"first"] * served
        with dial(proxy.address) as link:
            assert ask(link, b"second") == b"SECOND"
        assert proxy.exchanges == 2


def test_delay_takes_time(server: Server) -> None:
    with FaultProxy(server.address, [Fault.DELAY]) as proxy, dial(proxy.address) as link:
        started = time.monotonic()
        ask(link, b"late")
        assert time.monotonic() - started >= DELAY_S


def test_reordered_exchange_is_overtaken(server: Server) -> None:
    with (
        FaultProxy(server.address, [Fault.REORDER]) as proxy,
        dial(proxy.address) as slow,
        dial(proxy.address) as fast,
    ):
        thread = threading.Thread(target=ask, args=(slow, b"first"))
        thread.start()
        while proxy.exchanges == 0:
            time.sleep(0.001)
        ask(fast, b"second")
        thread.join()
    assert server.seen == [b"second", b"first"]


def test_requests_get_no_reply_while_the_proxy_is_silent(server: Server) -> None:
    with FaultProxy(server.address) as proxy:
        with dial(proxy.address) as link:
            proxy.silence()
            link.settimeout(0.1)
            with pytest.raises(TimeoutError):
                ask(link, b"lost")
            proxy.silence(False)
        with dial(proxy.address) as link:
            assert ask(link, b"heard") == b"HEARD"
    assert server.seen == [b"heard"]


def test_close_ends_waiting_connections_and_is_idempotent(server: Server) -> None:
    proxy = FaultProxy(server.address)
    proxy.silence()
    with dial(proxy.address) as link:
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(ask(link, b"x")))
        thread.start()
        while proxy.exchanges == 0:
            time.sleep(0.001)
        proxy.close()
        proxy.close()
        thread.join(5.0)
    assert got == [b""]


def test_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        FaultProxy("http://localhost")


def test_seeded_faults_are_repeatable_and_quick() -> None:
    faults = seeded_faults(3, 200, rate=0.5)
    assert faults == seeded_faults(3, 200, rate=0.5)
    assert faults != seeded_faults(4, 200, rate=0.5)
    assert set(faults) == set(Fault)
    assert 60 < faults.count(Fault.PASS) < 140
