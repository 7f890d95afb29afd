"""Silent, slow, resetting or half-closing peers do not affect the service for others."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dingsdk_flask_fs.transport import FlaskFSTransport

from .conftest import SECRET, Served

THREADS = 8
"""Threads of the server; there are several bad peers of each kind per thread."""
CALLS = 200
FLOOR_S = 0.05
"""Delay of single calls that a busy machine can cause, also without bad peers."""
HEAD = b"POST /v1/renew HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"


class BadPeers:
    """Three connections per thread of each kind, and further connections reset one by one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self.links = [self._dial() for _ in range(12 * THREADS)]
        _silent, half_closed, in_head, in_body = (self.links[n::4] for n in range(4))
        for link in (*half_closed, *in_body):
            # The server may have closed it, as newer connections need its place.
            with contextlib.suppress(OSError):
                link.sendall(HEAD)
                if link in half_closed:
                    link.shutdown(socket.SHUT_WR)
        self._threads = [
            threading.Thread(target=self._drip, args=([*in_head, *in_body],)),
            threading.Thread(target=self._reset),
        ]
        for thread in self._threads:
            thread.start()

    def _dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=5.0)

    def _drip(self, links: list[socket.socket]) -> None:
        while not self._over.wait(0.02):
            for link in links:
                try:
                    link.send(b"x")
                except OSError:
                    continue  # the server has closed the connection

    def _reset(self) -> None:
        while not self._over.wait(0.01):
            try:
                with self._dial() as link:
                    link.sendall(HEAD + b"half")
                    # Close with a reset instead of a FIN.
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                continue

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5.0)
        for link in self.links:
            link.close()


@pytest.fixture
def harass() -> Iterator[Callable[[int], BadPeers]]:
    made: list[BadPeers] = []

    def start(port: int) -> BadPeers:
        made.append(BadPeers(port))
        return made[-1]

    yield start
    for peers in made:
        peers.close()


def latencies(call: Callable[[], object], count: int = CALLS) -> tuple[float, float]:
    """Return the median and the 99th percentile of the duration of calls, in seconds."""
    taken = []
    for _ in range(count):
        started = time.monotonic()
        call()
        taken.append(time.monotonic() - started)
    taken.sort()
    return taken[len(taken) // 2], taken[int(0.99 * len(taken))]


def is_unaffected(alone: tuple[float, float], beside: tuple[float, float]) -> bool:
    return all(now < max(2 * before, FLOOR_S) for before, now in zip(alone, beside, strict=True))


def test_bad_peers_do_not_slow_a_worker_down(
    served: Served, harass: Callable[[int], BadPeers]
) -> None:
    end = served.slave()
    alone = latencies(lambda: end.renew(1))
    harass(served.port)
    beside = latencies(lambda: end.renew(1))
    assert is_unaffected(alone, beside), (alone, beside)
    newcomer = served.slave("w1")
    newcomer.close()
    end.close()


def hung_up(links: list[socket.socket]) -> int:
    """Return the number of connections that the server has closed."""
    count = 0
    for link in links:
        link.settimeout(0.0)
        try:
            count += link.recv(1) == b""
        except BlockingIOError:
            continue
        except OSError:
            count += 1
    return count


def test_idle_strangers_keep_no_worker_out_and_nobody_ends_a_connection_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    transport = FlaskFSTransport({"threads": THREADS, "max_connections": 8}, tmp_path / "run")
    served = Served(transport)
    end = served.slave()
    end.renew(1)
    link = end._reports._channel
    assert link is not None
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            place = ("127.0.0.1", served.port)
            stack.enter_context(socket.create_connection(place, 5.0))
        started = time.monotonic()
        newcomer = served.slave("w1")
        assert time.monotonic() - started < 1.0
        end.renew(2)
        assert end._reports._channel is link
    newcomer.close()
    end.close()
    transport.close()
    assert caplog.messages == []


def test_connections_with_incomplete_requests_are_closed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harass: Callable[[int], BadPeers],
) -> None:
    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    transport = FlaskFSTransport({"threads": THREADS, "request_timeout_s": 0.5}, tmp_path / "run")
    served = Served(transport)
    end = served.slave()
    peers = harass(served.port)  # 96 connections
    newcomer = served.slave("w1")  # can join although the peers took all connections
    deadline, pause = time.monotonic() + 10.0, threading.Event()
    while hung_up(peers.links) < 60:
        assert time.monotonic() < deadline, hung_up(peers.links)
        pause.wait(0.05)
        end.renew(1)
    newcomer.close()
    end.close()
    transport.close()
