"""Accepts connections to a listening socket, and serves each in a thread."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dingsdk.errors import ProtocolError

_log = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Pause after a connection could not be accepted, for example without free descriptors."""


def url_host(host: str) -> str:
    """Return a host as it is written before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, or ``[v6]:port``."""
    return f"{url_host(host)}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ProtocolError: it is not such an address.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ProtocolError(
            f"{address!r} is no address of a server; write host:port", where="address"
        )
    return host, int(port)


def ip_of(host: str, port: int, kind: socket.SocketKind) -> tuple[int, tuple[str, int]]:
    """Return the address family, and address and port, of a host: IPv4 if it has both.

    An IPv6 address may be in brackets.

    Raises:
        OSError: the name of the host is not known.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=kind)
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of a host, IPv4 if it has both.

    An empty host stands for all IPv4 addresses of this machine, as in ``socket.create_server``.

    Raises:
        OSError: the name of the host is not known, or its address cannot be used.
    """
    family, address = ip_of(host or "0.0.0.0", port, socket.SOCK_STREAM)
    return socket.create_server(address, family=family, backlog=128)


def why_not_bound(error: Exception) -> str:
    """Return why a server cannot listen on its address, and what to do about it."""
    advice = {
        errno.EADDRINUSE: "it is in use; choose another port, or 0 for any free one",
        errno.EACCES: "only root may have it; choose a port above 1023",
        errno.EADDRNOTAVAIL: "the host is not one of this machine's addresses",
    }
    return advice.get(getattr(error, "errno", None) or 0, str(error))


class Peer(Protocol):
    """One connection."""

    def shut_down(self) -> None:
        """End the calls of other threads that wait on the socket; it may be closed already."""

    def close(self) -> None:
        """Close the socket; idempotent."""


_Peer = TypeVar("_Peer", bound=Peer)


class Connections(Generic[_Peer]):
    """Accepts connections until it is closed, and serves each in its own thread.

    Args:
        listener: A listening socket, which this object closes.
        connect: Makes a peer from an accepted socket.
        serve: Called with each peer in its thread; the peer is closed when it returns.
        most: Largest number of open connections; further ones are closed at once.
        name: Prefix of the names of the threads.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], _Peer],
        serve: Callable[[_Peer], None],
        *,
        most: int,
        name: str,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._serve = serve
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._open: dict[_Peer, threading.Thread] = {}
        self._stop = threading.Event()
        self._loop = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)
        self._loop.start()

    def shut_down(self) -> None:
        """Stop accepting connections, and shut all peers down. Idempotent."""
        with self._lock:
            self._stop.set()
            peers = list(self._open)
        # A shutdown ends an accept in progress; closing the listener does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for peer in peers:
            peer.shut_down()

    def close(self, timeout_s: float) -> bool:
        """Shut down; return whether all threads ended in time. Idempotent."""
        deadline = time.monotonic() + timeout_s
        self.shut_down()
        with self._lock:
            threads = [self._loop, *self._open.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()
        return not any(thread.is_alive() for thread in threads)

    def _accept(self) -> None:
        has_failed = False
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if not self._stop.wait(PAUSE_S) and not has_failed:
                    _log.warning("connections cannot be accepted for now: %s", error)
                    has_failed = True
                continue
            has_failed = False
            peer = self._connect(sock)
            thread = threading.Thread(
                target=self._run, args=(peer,), name=f"{self._name}-connection", daemon=True
            )
            with self._lock:
                count = len(self._open)
                is_welcome = count < self._most and not self._stop.is_set()
                if is_welcome:
                    self._open[peer] = thread
                    thread.start()
            if not is_welcome:
                if not self._stop.is_set():
                    _log.warning("a connection was refused: %d are open", count)
                peer.close()

    def _run(self, peer: _Peer) -> None:
        try:
            self._serve(peer)
        finally:
            with self._lock:
                self._open.pop(peer, None)
            peer.close()
