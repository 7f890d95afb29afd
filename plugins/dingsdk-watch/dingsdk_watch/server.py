"""The server of the page: waitress, on a socket that is bound before anything is printed."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any

from waitress import wasyncore  # type: ignore[import-untyped]
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.server import TcpWSGIServer  # type: ignore[import-untyped]

from dingsdk.errors import PortInUseError
from dingsdk.runtime import format_address, listen, url_host
from dingsdk_watch.app import create_app
from dingsdk_watch.guard import TOKEN_PARAMETER, Guard, allowed_hosts
from dingsdk_watch.runs import Run

_log = logging.getLogger(__name__)

THREADS = 4
"""Most requests that are served at the same time."""
CONNECTIONS = 64
"""Most connections at the same time; if another comes, the one that is idle for longest ends."""
HEADER_BYTES = 16 << 10
"""Largest headers of a request."""


class Server:
    """Serves the page of some runs; use as a context manager, or close it.

    Args:
        runs: The runs that it shows.
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free one.
        token: Secret that gives access; None draws one.
        allow_hosts: Further host names that requests may use.

    Attributes:
        port: Port that it listens on.
        url: The address of the page, with the token.

    Raises:
        PortInUseError: the port is taken, or the address is not of this machine.
        InsecureBindError: as ``allowed_hosts``.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        hosts = allowed_hosts(host, allow_hosts)
        self.token = token or secrets.token_urlsafe(24)
        self._map: dict[int, Any] = {}
        # Bound before waitress starts threads, so that no threads remain after a failure.
        listener = _bind(host, port)
        self.port = int(listener.getsockname()[1])
        session = secrets.token_urlsafe(24)
        guard = Guard(self.token, session, hosts, self.port)
        self._server: Any = _Server(
            create_app(runs, guard, session),
            map=self._map,
            _sock=listener,
            bind_socket=False,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            threads=THREADS,
            connection_limit=2 * CONNECTIONS,  # `_Server` keeps fewer
            max_request_body_size=1,
            max_request_header_size=HEADER_BYTES,
            channel_timeout=30,
            ident="dingsdk-watch",
            log_socket_errors=False,
        )
        shown = url_host(allow_hosts[0]) if allow_hosts else hosts[0]
        self.url = f"http://{shown}:{self.port}/?{TOKEN_PARAMETER}={self.token}"
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-server", daemon=True)

    def start(self) -> None:
        """Serve in a thread until ``close``."""
        self._thread.start()

    def close(self) -> None:
        """Stop the server; idempotent."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        if self._thread.is_alive():
            self._server.pull_trigger()
            self._thread.join(timeout=5)
        self._server.task_dispatcher.shutdown(timeout=5)
        for each in list(self._map.values()):  # also the listener
            each.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                wasyncore.loop(timeout=1.0, map=self._map, use_poll=True, count=1)
            except Exception:
                _log.exception("the server's loop continues after an error")


class _Channel(HTTPChannel):  # type: ignore[misc]
    def received(self, data: bytes) -> bool:
        try:
            taken: bool = super().received(data)
        except ValueError:
            # As in `dingsdk_flask_fs`: waitress raises for some addresses and for a Content-Length
            # of 5,000 digits, and anybody could write an error to the log as often as they like.
            self.will_close = True
            return False
        return taken


class _Server(TcpWSGIServer):  # type: ignore[misc]
    channel_class = _Channel

    def handle_accept(self) -> None:
        super().handle_accept()
        channels = [each for each in self.active_channels.values() if not each.will_close]
        if len(channels) > CONNECTIONS:
            # A browser opens another connection by itself. A connection that is being served is
            # the last choice to end; nobody can keep others out by connections on which nothing
            # happens.
            idle = min(channels, key=lambda each: (bool(each.requests), each.last_activity))
            idle.will_close = True


def _bind(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        address = format_address(host, port)
        raise PortInUseError(
            f"cannot listen on {address}: {error.strerror or error}; choose another --port",
            address=address,
        ) from error
