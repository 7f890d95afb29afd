"""A proxy that simulates a bad network: it drops, delays, repeats, reorders and cuts messages.

For ``http://`` addresses it forwards requests and replies, one after the other on each
connection; for ``tcp://`` addresses it forwards bytes. The faults come from a list, one for each
exchange (HTTP) or chunk (TCP) in the order of their arrival. So a test can choose the faults,
draw them at random, or search for the fewest that cause a failure.
"""

from __future__ import annotations

import contextlib
import enum
import random
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from dingsdk.runtime.deadline import Closing

DELAY_S = 0.03
REORDER_S = 0.05
"""How long a reordered exchange waits for another one to pass it."""
DUPLICATE_S = 1.0
_ACCEPT_S = 0.2
_CHUNK = 65536
_GOLDEN = 0.6180339887
"""The fractional parts of its multiples are spread evenly over [0, 1)."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,12})\r\n", re.IGNORECASE)


class Fault(enum.Enum):
    """What happens to one exchange. Raw TCP supports only PASS, DROP, DELAY and SWALLOW."""

    PASS = "pass"
    DROP = "drop"  # the connection is cut before anything is forwarded
    DELAY = "delay"
    DUPLICATE = "duplicate"  # forwarded twice; the second reply is thrown away
    REORDER = "reorder"  # held until another exchange has passed
    CUT_REQUEST = "cut_request"  # a part of the request is forwarded, then both sides are cut
    LOSE_REPLY = "lose_reply"  # forwarded and processed; the connection is cut before the reply
    CUT_REPLY = "cut_reply"  # a part of the reply is returned, then both sides are cut
    SWALLOW = "swallow"  # read but not forwarded; no reply ever comes


QUICK_FAULTS: Final = tuple(fault for fault in Fault if fault is not Fault.SWALLOW)
"""Faults that both ends notice without a timeout."""


def seeded_faults(seed: int, count: int, rate: float = 0.5) -> list[Fault]:
    """Return random faults for ``count`` exchanges; a share of about ``rate`` does not pass."""
    chance = random.Random(seed)
    faults = [fault for fault in QUICK_FAULTS if fault is not Fault.PASS]
    return [chance.choice(faults) if chance.random() < rate else Fault.PASS for _ in range(count)]


class _CutError(Exception):
    """The connection must be cut."""


class FaultProxy(Closing):
    """Listens on a free port of the loopback interface, and forwards to ``target``.

    Args:
        target: ``http://host:port`` or ``tcp://host:port``.
        faults: The fault of each exchange; exchanges after the last fault pass.

    Attributes:
        address: The address to connect to instead of ``target``.
        exchanges: The number of exchanges so far.
    """

    def __init__(self, target: str, faults: Iterable[Fault] = ()) -> None:
        parts = urlsplit(target)
        if parts.scheme not in ("http", "tcp") or not parts.hostname or not parts.port:
            raise ValueError(f"{target!r} is no http://host:port or tcp://host:port")
        self._target = (parts.hostname, parts.port)
        self._is_http = parts.scheme == "http"
        self._faults: Iterator[Fault] = iter(faults)
        self._turn = threading.Condition()
        self._passed = 0
        self._cuts = 0
        self._is_silent = False
        self._is_closed = False
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.exchanges = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_ACCEPT_S)
        self.address = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept, "fault-proxy")

    def silence(self, is_silent: bool = True) -> None:
        """Start or stop to swallow all messages. Swallowed messages are not delivered later."""
        with self._turn:
            self._is_silent = is_silent
        if not is_silent:
            self._cut_all()

    def close(self) -> None:
        """Cut all connections and stop. Idempotent."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()
        self._listener.close()
        self._cut_all()
        for thread in list(self._threads):
            thread.join(5.0)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            self._start(partial(self._serve, client), "fault-proxy-connection")

    def _serve(self, client: socket.socket) -> None:
        links = [client]
        try:
            self._keep(client)
            links.append(server := self._dial())
            if self._is_http:
                while True:
                    self._exchange(client, server)
            else:
                self._start(partial(self._pump, server, client), "fault-proxy-replies")
                self._pump(client, server)
        except (_CutError, OSError):
            pass  # both sides are cut below
        finally:
            for link in links:
                _cut(link)

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        request = _read_message(client)
        fault = self._next_fault()
        if fault is Fault.REORDER:
            self._let_pass(REORDER_S)
        if fault is Fault.CUT_REQUEST:
            server.sendall(self._part(request))
            raise _CutError
        server.sendall(request)
        reply = _read_message(server)
        if fault is Fault.DUPLICATE:
            self._send_again(request)
        with self._turn:
            self._passed += 1
            self._turn.notify_all()
        if fault is Fault.LOSE_REPLY:
            raise _CutError
        if fault is Fault.CUT_REPLY:
            client.sendall(self._part(reply))
            raise _CutError
        if self._is_silent:
            self._hold()
        client.sendall(reply)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK):
                self._next_fault()
                sink.sendall(data)
        except (_CutError, OSError):
            pass  # both directions are cut below
        _cut(source)
        _cut(sink)

    def _send_again(self, request: bytes) -> None:
        twin = self._dial()
        try:
            twin.settimeout(DUPLICATE_S)
            twin.sendall(request)
            _read_message(twin)
        except (_CutError, OSError):
            pass  # the request was sent; its reply is not needed
        finally:
            _cut(twin)

    def _next_fault(self) -> Fault:
        """Return the fault of an exchange; handles DELAY, SWALLOW and DROP itself."""
        with self._turn:
            self.exchanges += 1
            fault = Fault.SWALLOW if self._is_silent else next(self._faults, Fault.PASS)
            if fault is Fault.DELAY:
                self._turn.wait_for(lambda: self._is_closed, DELAY_S)
        if fault is Fault.SWALLOW:
            self._hold()
        if fault is Fault.DROP:
            raise _CutError
        return fault

    def _part(self, message: bytes) -> bytes:
        """Return the beginning of a message; each call cuts at a different place."""
        with self._turn:
            self._cuts += 1
            share = self._cuts * _GOLDEN % 1.0
        return message[: max(1, int(share * len(message)))]

    def _hold(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._is_closed or not self._is_silent, 3600.0)
        raise _CutError

    def _let_pass(self, wait_s: float) -> None:
        with self._turn:
            passed = self._passed
            self._turn.wait_for(lambda: self._is_closed or self._passed != passed, wait_s)

    def _dial(self) -> socket.socket:
        return self._keep(socket.create_connection(self._target, timeout=None))

    def _keep(self, link: socket.socket) -> socket.socket:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._turn:
            self._links.append(link)
            is_late = self._is_closed
        if is_late:
            _cut(link)
            raise _CutError
        return link

    def _cut_all(self) -> None:
        # Only shut down: the thread that waits on a socket closes it.
        with self._turn:
            self._turn.notify_all()
            links, self._links = self._links, []
        for link in links:
            _shut(link)

    def _start(self, function: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=function, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def _read_message(link: socket.socket) -> bytes:
    """Return a whole HTTP message; its length comes from the Content-Length header."""
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _receive(link)
    found = _LENGTH.search(received[: end + 2])
    size = end + 4 + (int(found[1]) if found else 0)
    while len(received) < size:
        received += _receive(link)
    return bytes(received)


def _receive(link: socket.socket) -> bytes:
    data = link.recv(_CHUNK)
    if not data:
        raise _CutError
    return data


def _cut(link: socket.socket) -> None:
    _shut(link)
    link.close()


def _shut(link: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side has already closed it
        link.shutdown(socket.SHUT_RDWR)
