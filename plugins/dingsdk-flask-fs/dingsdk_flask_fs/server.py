"""A waitress server that can be started and closed, and reports its port."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore  # type: ignore[import-untyped]
from waitress.adjustments import Adjustments  # type: ignore[import-untyped]
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.server import TcpWSGIServer  # type: ignore[import-untyped]
from waitress.task import ThreadedTaskDispatcher, WSGITask  # type: ignore[import-untyped]

from dingsdk.errors import PortInUseError
from dingsdk.runtime import BACKLOG, format_address, listen, why_not_bound

_log = logging.getLogger(__name__)
_quiet_log = logging.getLogger(f"{__name__}.queue")
_quiet_log.disabled = True

HEADER_BYTES = 16 << 10
"""Largest headers of a request."""
FLUSH_S = 0.5
"""How long sending the last answers may take, once the requests are served."""
SWEEP_S = 0.25
"""How often to check for connections whose request does not arrive."""
STRANGERS = 64
"""Most connections that have not sent a genuine request yet."""
SPARE = 8
"""Room for the server's own descriptors, and for connections that are being closed."""
KNOWN = "dingsdk.known"
"""Key of a request's environment: the function to call once the request is known to be genuine."""


class HttpServer:
    """Serves one WSGI application on one address, on its own threads.

    Args:
        host: Address to bind.
        port: Port to bind; 0 for any free port.
        threads: Requests served at the same time.
        connections: Connections of workers at the same time; further ones wait to be accepted.
            Others have a room of their own, from which the oldest one has to go if another comes.
        max_bytes: Size of the largest body; a larger one is refused before it is read.
        read_s: Seconds for a request to arrive completely; for the first request of a connection,
            counted from the start of the connection.

    Raises:
        PortInUseError: the address is in use, or not one of this host.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        threads: int,
        connections: int,
        max_bytes: int,
        read_s: float = 10.0,
    ) -> None:
        # Bound before any thread is started, so that a failure needs no cleanup.
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._threads = threads
        self._read_s = read_s
        self._sweep_at = 0.0
        self._adjustments = Adjustments(
            sockets=[],
            threads=threads,
            connection_limit=connections + STRANGERS + SPARE,
            max_request_body_size=max_bytes + 1,
            max_request_header_size=HEADER_BYTES,
            inbuf_overflow=max_bytes + 1,
            channel_timeout=60,
            cleanup_interval=10,
            backlog=BACKLOG,
            ident="dingsdk",
            log_socket_errors=False,
            clear_untrusted_proxy_headers=False,  # they are never read
        )
        self._map: dict[int, Any] = {}
        self._dispatcher = ThreadedTaskDispatcher()
        self._dispatcher.queue_logger = _quiet_log  # it warns of each request without a thread
        self._loop: threading.Thread | None = None
        self._server: TcpWSGIServer | None = None
        self._is_stopped = False
        self._flush_until = 0.0

    def start(self, app: Callable[..., Any]) -> None:
        """Serve ``app`` from now on; called once."""
        self._dispatcher.set_thread_count(self._threads)
        self._server = _Server(
            app,
            self._map,
            _sock=self._socket,
            dispatcher=self._dispatcher,
            adj=self._adjustments,
            bind_socket=False,
            sockinfo=(self._socket.family, self._socket.type, 0, None),
        )
        self._loop = threading.Thread(target=self._run, name="http-server", daemon=True)
        self._loop.start()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Finish the requests being served, then end; return whether all ended in time.

        Called once, also if the server was not started.
        """
        deadline = time.monotonic() + timeout_s
        if self._loop is None:
            self._socket.close()
            return True
        assert self._server is not None  # created with the loop
        self._dispatcher.shutdown(timeout=deadline - time.monotonic())
        self._flush_until = min(deadline, time.monotonic() + FLUSH_S)
        self._is_stopped = True
        # The loop may end by itself now, but it closes nothing, so the trigger still works.
        self._server.pull_trigger()
        self._loop.join(max(0.1, deadline - time.monotonic()))
        if self._loop.is_alive():
            return False
        wasyncore.close_all(self._map, ignore_all=True)
        return not self._dispatcher.threads

    def _run(self) -> None:
        while not self._is_stopped or self._has_unsent():
            timeout_s = 0.1 if self._is_stopped else 1.0
            try:
                wasyncore.loop(timeout=timeout_s, use_poll=True, map=self._map, count=1)
                self._sweep()
            except Exception:
                _log.exception("the http server's loop continues after an error")

    def _sweep(self) -> None:
        """Close connections whose request does not arrive in time; no pool thread waits for it."""
        now = time.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_S
        for channel in self._channels():
            if channel.begun_at is not None and now - channel.begun_at > self._read_s:
                channel.will_close = True

    def _channels(self) -> list[_Channel]:
        return [each for each in self._map.values() if isinstance(each, _Channel)]

    def _has_unsent(self) -> bool:
        """Return whether answers wait to be sent and the time for sending is not over."""
        is_waiting = any(channel.total_outbufs_len > 0 for channel in self._channels())
        return is_waiting and time.monotonic() < self._flush_until


class _Task(WSGITask):  # type: ignore[misc]
    """A request whose environment contains ``KNOWN``."""

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[KNOWN] = self.channel.note_known
        return environ


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection that stores when its current request began to arrive, and if it is known."""

    task_class = _Task
    is_known = False

    def note_known(self) -> None:
        """Note that a genuine request came over this connection."""
        self.is_known = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.begun_at: float | None = time.monotonic()
        super().__init__(*args, **kwargs)

    def received(self, data: bytes) -> bool:
        if self.begun_at is None:
            self.begun_at = time.monotonic()
        try:
            taken: bool = super().received(data)
        except ValueError:
            # Waitress raises for some addresses, and for a Content-Length of 5,000 digits. Left
            # alone, anybody could write an error to the log as often as they like.
            self.will_close = True
            return False
        if self.request is None:
            self.begun_at = None
        return taken


class _Server(TcpWSGIServer):  # type: ignore[misc]
    channel_class = _Channel

    def handle_accept(self) -> None:
        super().handle_accept()
        # In the order in which they connected.
        channels = self.active_channels.values()
        strangers = [each for each in channels if not (each.is_known or each.will_close)]
        if len(strangers) > STRANGERS:
            # A connection whose request is being served may turn out to be genuine.
            min(strangers, key=lambda each: bool(each.requests)).will_close = True


def _bind(host: str, port: int) -> socket.socket:
    try:
        listener = listen(host, port)
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {format_address(host, port)}: {why_not_bound(error)}",
            host=host,
            port=port,
        ) from error
    listener.setblocking(False)
    return listener
