"""The coordinator's end: a request handler, its Flask application, and the server for both."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import flask
from werkzeug.exceptions import HTTPException

from dingsdk.runtime import (
    PrivateDir,
    Refusal,
    check_reach,
    format_address,
    ip_address_of,
    is_loopback,
)
from dingsdk.worker.comm import MasterListener
from dingsdk.worker.comm.requests import (
    BODIES,
    RequestHandler,
    RequestMasterEnd,
    answer_of,
    create_secret,
    error_answer,
)
from dingsdk_flask_fs.auth import MAC_HEADER, Verifier
from dingsdk_flask_fs.folder_lock import folder_lock
from dingsdk_flask_fs.guard import HEALTH, Guard
from dingsdk_flask_fs.server import KNOWN, HttpServer

if TYPE_CHECKING:
    from dingsdk_flask_fs.transport import FlaskFSTransport

MIN_FREE_THREADS = 4
"""Fewest threads that are reserved for requests that do not wait."""
_NONCE = "dingsdk.nonce"


class HttpMasterEnd(RequestMasterEnd):
    """A master end that listens on ``http://host:port`` once it is opened.

    Args:
        cfg: The complete section ``system.transport``.
        folder: The transport's own folder.
    """

    def __init__(self, cfg: FlaskFSTransport.Config, folder: PrivateDir) -> None:
        super().__init__()
        self._cfg = cfg
        self._folder = folder

    def listen(
        self, listener: MasterListener, until_close: ExitStack
    ) -> tuple[RequestHandler, HttpServer, str]:
        """Begin to serve.

        Raises:
            AuthError: the secret cannot be used.
            InsecureBindError: other hosts could reach the address, and the user set no secret.
            PortInUseError: the address is in use.
            RunDirLockedError: another run uses the folder.
        """
        cfg = self._cfg
        host, max_bytes = cfg.host.strip("[]"), cfg.max_message_bytes
        until_close.enter_context(folder_lock(self._folder.path))
        secret = create_secret(self._folder)
        check_reach(host, secret, "system.transport.host")
        with ExitStack() as undo:
            server = HttpServer(
                host,
                cfg.port,
                threads=cfg.threads,
                connections=cfg.max_connections,
                max_bytes=max_bytes,
                read_s=cfg.request_timeout_s,
            )
            undo.callback(server.close)
            max_polls = max(1, cfg.threads - max(MIN_FREE_THREADS, cfg.threads // 4))
            handler = self.handler_of(listener, self._folder, max_bytes, max_polls)
            verifier = Verifier(secret)
            guard = Guard(
                verifier,
                _own_names(host) | set(cfg.allowed_hosts),
                any_address=_is_wildcard(host),
                max_bytes=max_bytes,
            )
            server.start(create_app(handler, guard, verifier))
            undo.pop_all()
        name = socket.gethostname() if _is_wildcard(host) else host
        return handler, server, f"http://{format_address(name, server.port)}"


def _own_names(host: str) -> set[str]:
    names = {host, "localhost", "127.0.0.1", "::1"}
    if not is_loopback(host):
        names |= {socket.gethostname(), socket.getfqdn()}
    return names


def _is_wildcard(host: str) -> bool:
    address = ip_address_of(host)
    return host == "" if address is None else address.is_unspecified


def create_app(handler: RequestHandler, guard: Guard, verifier: Verifier) -> flask.Flask:
    """Return the WSGI application of a master.

    Answers to requests that passed the guard are signed. Errors are
    ``{code, message, request_id}``; the id is also in the log.
    """
    app = flask.Flask(__name__, static_folder=None)

    def admit() -> None:
        environ = flask.request.environ
        environ[_NONCE] = guard.check(environ)
        if environ[_NONCE] is not None:
            environ[KNOWN]()

    def serve() -> flask.Response:
        # The kind is the route's name, so that a request cannot name another kind.
        kind = str(flask.request.endpoint)
        return _response(*handler.answer(kind, flask.request.environ["dingsdk.body"]))

    def sign(response: flask.Response) -> flask.Response:
        nonce = flask.request.environ.get(_NONCE)
        if nonce is not None:
            mac = verifier.sign_answer(nonce, response.status_code, response.get_data())
            response.headers[MAC_HEADER] = mac
        return response

    app.before_request(admit)
    app.after_request(sign)
    app.register_error_handler(Refusal, _refused)
    app.register_error_handler(HTTPException, _not_found)
    app.register_error_handler(Exception, lambda error: _response(*answer_of(error)))
    for kind in BODIES:
        app.add_url_rule(f"/v1/{kind}", kind, serve, methods=["POST"])
    app.add_url_rule(HEALTH, "health", lambda: flask.Response(status=204), methods=["GET"])
    return app


def _refused(refusal: Refusal) -> flask.Response:
    response = _response(refusal.status, refusal.body)
    if refusal.retry_after_s:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    return response


def _not_found(error: HTTPException) -> flask.Response:
    return _response(*error_answer(error.code or 500, "ProtocolError", error.name))


def _response(status: int, body: bytes) -> flask.Response:
    return flask.Response(body, status, content_type="application/json")
