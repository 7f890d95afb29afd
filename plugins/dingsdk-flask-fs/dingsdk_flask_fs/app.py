"""The Flask application of a coordinator, and the names that its requests may use for it."""

from __future__ import annotations

import socket

import flask
from werkzeug.exceptions import HTTPException

from dingsdk.runtime import Refusal, ip_address_of, is_loopback
from dingsdk.worker.comm.requests import BODIES, RequestHandler, answer_of, error_answer
from dingsdk_flask_fs.auth import MAC_HEADER, Verifier
from dingsdk_flask_fs.guard import HEALTH, Guard
from dingsdk_flask_fs.server import KNOWN

_NONCE = "dingsdk.nonce"


def own_names(host: str) -> set[str]:
    """Return the names of a server that listens on ``host``."""
    names = {host, "localhost", "127.0.0.1", "::1"}
    if not is_loopback(host):
        names |= {socket.gethostname(), socket.getfqdn()}
    return names


def is_wildcard(host: str) -> bool:
    """Whether a host stands for all addresses of this machine."""
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
