"""Accepts connections to a listening socket, and serves each in a thread."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dingsdk.errors import AuthError, ProtocolError, repr_of

_log = logging.getLogger(__name__)

PAUSE_S = 0.1
"""Pause after a connection could not be accepted, for example without free descriptors."""
BACKLOG = 512
"""Most connections that wait to be accepted."""
STRANGERS = 64
"""Most connections whose peer has not proved yet that it knows the secret."""
GREETING_S = 2.0
"""How long such a peer may take for its proof."""
PLACE_S = 0.5
"""How long a peer that knows the secret waits for a place; a thread that ends may need as long."""
LOG_EVERY_S = 60.0
"""Shortest time between two log lines about connections that were refused."""


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
    host, colon, port = (address if isinstance(address, str) else "").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ProtocolError(
            f"{repr_of(address)} is no address of a server; write host:port", where="address"
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
    return socket.create_server(address, family=family, backlog=BACKLOG)


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


class RareLog:
    """Logs warnings about other processes, at most one line per ``LOG_EVERY_S``. Thread-safe.

    Otherwise a process that connects again and again could fill the disk.

    Args:
        log: Where to log.
        clock: Monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._left_out = 0
        self._log_at = -math.inf

    def warning(self, text: str, *args: object) -> None:
        """Log a line, or only count it if the last one is too recent."""
        with self._lock:
            now = self._clock()
            if now < self._log_at:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
            self._log_at = now + LOG_EVERY_S
        if left_out:
            text += f" (and {left_out} more since the last such line)"
        self._log.warning(text, *args)


_Peer = TypeVar("_Peer", bound=Peer)
_Name = TypeVar("_Name")


class Connections(Generic[_Peer, _Name]):
    """Accepts connections until it is closed, and serves each in its own thread.

    A peer is a stranger until ``greet`` returns. Strangers have a room of their own, from which the
    oldest one has to go if another one comes, so that they never keep out those who know the
    secret. A peer that knows it waits up to ``PLACE_S`` for a place among those that are served, as
    the connection that had the place may have been closed just now. A connection for which there is
    no thread, memory or descriptor is refused; the next one is served again.

    Args:
        listener: A listening socket, which this object closes.
        connect: Makes a peer from an accepted socket.
        greet: Called with each peer in its thread; returns its name, or raises within
            ``GREETING_S``.
        serve: Called with a peer and its name; the peer is closed when it returns.
        most: Largest number of peers that are served; further ones are closed at once.
        name: Prefix of the names of the threads.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[socket.socket], _Peer],
        greet: Callable[[_Peer], _Name],
        serve: Callable[[_Peer, _Name], None],
        *,
        most: int,
        name: str,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._greet = greet
        self._serve = serve
        self._most = most
        self._name = name
        self._lock = threading.Condition(threading.Lock())
        self._threads: dict[_Peer, threading.Thread] = {}
        self._strangers: dict[_Peer, None] = {}  # the oldest one first
        self._proved: set[_Peer] = set()
        """Peers that proved to know the secret, also while their threads wait for the lock."""
        self._served: set[_Peer] = set()
        self._refused = RareLog(_log)
        self._stop = threading.Event()
        self._loop = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)
        try:
            self._loop.start()
        except BaseException:
            listener.close()
            raise

    def shut_down(self) -> None:
        """Stop accepting connections, and shut all peers down. Idempotent."""
        with self._lock:
            self._stop.set()
            peers = list(self._threads)
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
            threads = [self._loop, *self._threads.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()
        return not any(thread.is_alive() for thread in threads)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                self._begin(self._listener.accept()[0])
            except Exception as error:
                # No descriptors, threads or memory for now; an error here must not end the loop.
                with self._lock:
                    self._evict()  # strangers may have taken them
                if not self._stop.wait(PAUSE_S):
                    self._refused.warning("a connection cannot be accepted for now: %s", error)

    def _begin(self, sock: socket.socket) -> None:
        """Start the thread of a connection."""
        try:
            peer = self._connect(sock)
            thread = threading.Thread(
                target=self._run, args=(peer,), name=f"{self._name}-connection", daemon=True
            )
            with self._lock:
                if self._stop.is_set():
                    raise ConnectionAbortedError("the server ends")
                thread.start()  # it needs the lock to end
                self._threads[peer] = thread
                is_crowded = len(self._strangers) >= STRANGERS
                if is_crowded:
                    self._evict()
                self._strangers[peer] = None
        except BaseException:
            sock.close()
            raise
        if is_crowded:
            self._refused.warning(
                "%d connections have not proved that they know the secret: the oldest one is "
                "closed",
                STRANGERS,
            )

    def _evict(self) -> None:
        """Close the connection of the oldest stranger; the lock is held."""
        oldest = next((each for each in self._strangers if each not in self._proved), None)
        if oldest is not None:
            del self._strangers[oldest]
            oldest.shut_down()

    def _run(self, peer: _Peer) -> None:
        kind = "refused"
        try:
            name = self._greet(peer)
            self._proved.add(peer)
            if self._is_welcome(peer):
                kind = "closed"
                self._serve(peer, name)
        except (AuthError, ProtocolError) as error:
            self._refused.warning(f"a connection was {kind}: %s", error)
        except OSError as error:
            _log.debug("a connection ended: %s", error)
        except Exception:
            # A bug, or an unexpected value: only the connection that sent it is closed.
            _log.exception("a connection was closed")
        finally:
            with self._lock:
                self._threads.pop(peer, None)
                self._strangers.pop(peer, None)
                self._served.discard(peer)
                self._proved.discard(peer)
                self._lock.notify_all()
            peer.close()

    @property
    def _has_place(self) -> bool:
        return len(self._served) < self._most

    def _is_welcome(self, peer: _Peer) -> bool:
        with self._lock:
            if peer not in self._strangers or self._stop.is_set():
                return False
            del self._strangers[peer]
            self._lock.wait_for(lambda: self._stop.is_set() or self._has_place, PLACE_S)
            if self._has_place:
                self._served.add(peer)
                return not self._stop.is_set()
        self._refused.warning("a connection was refused: %d are open", self._most)
        return False
