"""Connections: accepted up to a limit, each served in its own thread, closed together."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from dingsdk.errors import AuthError
from dingsdk.runtime import Connections, connections, format_address
from dingsdk.runtime.connections import listen

PATIENCE_S = 10.0
SECRET = b"secret"


class Echo:
    """A peer that says its secret first, and gets back what it sends; ``!`` makes it raise."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_closed = False

    def greet(self) -> str:
        if not (said := self.sock.recv(64)):
            raise ConnectionResetError
        if said != SECRET:
            raise AuthError(f"a client does not know the secret: {said!r}")
        self.sock.sendall(b"welcome")
        return "a client"

    def serve(self, name: str) -> None:
        assert name == "a client"
        while content := self.sock.recv(64):
            if content == b"!":
                raise ZeroDivisionError
            self.sock.sendall(content)

    def shut_down(self) -> None:
        with suppress(OSError):  # it is closed already
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.is_closed = True
        self.sock.close()


class Site:
    def __init__(self, most: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.listener = listener
        self.peers: list[Echo] = []
        self.connections = Connections(
            listener, self.connect, Echo.greet, Echo.serve, most=most, name="echo"
        )

    def connect(self, sock: socket.socket) -> Echo:
        self.peers.append(Echo(sock))
        return self.peers[-1]

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE_S)

    def dial(self) -> socket.socket:
        sock = self.stranger()
        ask(sock, SECRET)
        return sock


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(most=2)
    yield made
    assert made.connections.close(PATIENCE_S)


def ask(sock: socket.socket, content: bytes = b"a") -> bytes:
    sock.sendall(content)
    return sock.recv(64)


def wait_until(is_so: Iterator[bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not next(is_so):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_connection_above_the_limit_is_closed_until_another_ends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.dial() as first, site.dial() as second:
        assert ask(first) == ask(second) == b"a"
        with site.dial() as third:
            assert third.recv(64) == b""
        wait_until(iter(lambda: site.peers[2].is_closed, None))
        assert caplog.messages == ["a connection was refused: 2 are open"]
        first.close()
        wait_until(iter(lambda: site.peers[0].is_closed, None))
        with site.dial() as fourth:
            assert ask(fourth) == b"a"


def test_close_ends_peers_threads_and_the_listener() -> None:
    before = threading.active_count()
    site = Site(most=8)
    with site.dial() as first, site.dial() as second:
        assert ask(first) == ask(second) == b"a"
        names = ["echo-accept", "echo-connection", "echo-connection"]
        threads = [each for each in threading.enumerate() if each.name in names]
        assert sorted(each.name for each in threads) == names
        assert all(each.daemon for each in threads)  # so they do not keep the process alive
        assert site.connections.close(PATIENCE_S)
        assert first.recv(64) == second.recv(64) == b""
    assert [each.is_closed for each in site.peers] == [True, True]
    assert threading.active_count() == before
    assert site.listener.fileno() == -1
    assert site.connections.close(PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        site.dial()


def test_close_returns_false_after_one_deadline_for_all_threads() -> None:
    go_on = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    made = Connections(
        listener, Echo, lambda peer: go_on.wait(PATIENCE_S), Echo.serve, most=3, name="stuck"
    )
    with ExitStack() as stack:
        for _ in range(3):
            client = socket.create_connection(listener.getsockname(), PATIENCE_S)
            stack.enter_context(client)
        wait_until(iter(lambda: len(made._threads) == 3, None))
        started_s = time.monotonic()
        assert not made.close(0.05)
        assert time.monotonic() - started_s < 2
        go_on.set()
        assert made.close(PATIENCE_S)


class ShortOfDescriptors(socket.socket):
    """A listener whose first two accepts fail."""

    refusals = 2

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_failed_accepts_are_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE_S", 0.01)
    listener = ShortOfDescriptors()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    made = Connections(listener, Echo, Echo.greet, Echo.serve, most=1, name="echo")
    with socket.create_connection(listener.getsockname(), PATIENCE_S) as client:
        assert ask(client, SECRET) == b"welcome"
        assert made.close(PATIENCE_S)
    text = "a connection cannot be accepted for now: [Errno 24] too many open files"
    assert caplog.messages == [text]


def test_connection_without_a_thread_is_refused_and_the_next_one_is_served(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.dial() as before:
        assert ask(before) == b"a"  # else the server may not know yet that it is no stranger
        threading.stack_size(1 << 47)  # more than the address space: no thread can be started
        try:
            with site.stranger() as unlucky:
                assert unlucky.recv(64) == b""
        finally:
            threading.stack_size(0)
        with site.dial() as after:
            assert ask(before) == ask(after) == b"a"
    assert caplog.messages == ["a connection cannot be accepted for now: can't start new thread"]
    assert site.connections.close(PATIENCE_S)


def test_connection_that_arrives_while_the_server_ends_is_closed(site: Site) -> None:
    def end(sock: socket.socket) -> Echo:
        site.connections.shut_down()
        return site.connect(sock)

    site.connections._connect = end
    with site.stranger() as late:
        assert late.recv(64) == b""


def test_strangers_never_keep_out_who_knows_the_secret(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        member = stack.enter_context(site.dial())
        idle = [stack.enter_context(site.stranger()) for _ in range(300)]
        for _ in range(3):
            started_s = time.monotonic()
            with site.dial() as client:
                assert ask(client) == b"a"
            assert time.monotonic() - started_s < 1.0
        assert ask(member) == b"a"
        wait_until(iter(lambda: threading.active_count() <= before + connections.STRANGERS, None))
        assert idle[0].recv(64) == b""  # the oldest ones had to go
    text = "64 connections have not proved that they know the secret: the oldest one is closed"
    assert caplog.messages == [text]


def test_peer_that_is_served_is_not_counted_as_a_stranger(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 1)
    with site.dial() as member:
        assert ask(member) == b"a"
        with site.dial() as other:
            assert ask(other) == b"a"
    assert caplog.messages == []


def test_place_of_a_connection_that_is_ending_is_given_to_the_next_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def serve_and_linger(peer: Echo, name: str) -> None:
        peer.serve(name)
        ended.wait(PATIENCE_S)  # as a thread that gets no turn

    monkeypatch.setattr(site.connections, "_serve", serve_and_linger)
    first, second = site.dial(), site.dial()
    assert ask(first) == ask(second) == b"a"
    first.close()
    with site.dial() as third:
        threading.Timer(0.05, ended.set).start()
        assert ask(third) == b"a"
    second.close()


def test_peer_that_has_proved_itself_keeps_its_connection_while_it_waits_for_the_lock(
    site: Site,
) -> None:
    with site.stranger() as stranger, site.stranger() as member:
        wait_until(iter(lambda: len(site.connections._strangers) == 2, None))
        with site.connections._lock:
            assert ask(member, SECRET) == b"welcome"
            wait_until(iter(lambda: len(site.connections._proved) == 1, None))
            for _ in range(2):
                site.connections._evict()
        assert ask(member) == b"a"
        assert stranger.recv(64) == b""


def test_wrong_secrets_are_one_log_line_a_minute(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_it(count: int) -> None:
        for _ in range(count):
            with site.stranger() as wrong:
                assert ask(wrong, b"guess") == b""

    try_it(20)
    monkeypatch.setattr(site.connections._refused, "_log_at", 0.0)  # a minute later
    try_it(2)
    text = "a connection was refused: a client does not know the secret: b'guess'"
    assert caplog.messages == [text, f"{text} (and 19 more since the last such line)"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [(["::1"], "::1"), (["::1", "127.0.0.1"], "127.0.0.1")],
    ids=["only IPv6", "both"],
)
def test_server_listens_on_the_address_of_a_host_name(
    found: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **given: [
            each
            for address in (found if host == "node" else [host])
            for each in real(address, *args, **given)
        ],
    )
    with listen("node", 0) as listener:
        assert listener.getsockname()[0] == expected
        socket.create_connection(listener.getsockname()[:2], timeout=5).close()


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_address_of_ipv6_is_written_in_brackets(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert format_address(host, port) == f"[::1]:{port}"
    assert format_address("box.lan", 80) == "box.lan:80"
