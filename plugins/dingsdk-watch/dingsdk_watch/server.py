"""The server of the page: the HTTP server of ``flask_fs``, with the page as its application."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from dingsdk_flask_fs.server import HttpServer

from dingsdk.runtime import url_host
from dingsdk_watch.app import create_app
from dingsdk_watch.guard import TOKEN_PARAMETER, Guard, allowed_hosts
from dingsdk_watch.runs import Run

THREADS = 4
"""Most requests that are served at the same time."""
READ_S = 30.0
"""Seconds for a request to arrive."""


class Server:
    """Serves the page of some runs; use as a context manager, or close it.

    All connections count as those of strangers: if there are too many, the oldest one ends.

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
        self._server = HttpServer(
            host, port, threads=THREADS, connections=0, max_bytes=0, read_s=READ_S
        )
        self.port = self._server.port
        session = secrets.token_urlsafe(24)
        self._app = create_app(runs, Guard(self.token, session, hosts, self.port), session)
        shown = url_host(allow_hosts[0]) if allow_hosts else hosts[0]
        self.url = f"http://{shown}:{self.port}/?{TOKEN_PARAMETER}={self.token}"
        self._is_closed = False

    def start(self) -> None:
        """Serve in threads until ``close``."""
        self._server.start(self._app)

    def close(self) -> None:
        """Stop the server; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._server.close()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
