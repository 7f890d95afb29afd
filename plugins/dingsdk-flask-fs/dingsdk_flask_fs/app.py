"""The Flask application: one route a kind of request, one guard before them all."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from dingsdk.errors import ClosedError, DingError, ProtocolError, StaleEpochError
from dingsdk_flask_fs.auth import MAC_HEADER, Verifier
from dingsdk_flask_fs.guard import HEALTH, Guard, Refusal
from dingsdk_flask_fs.messages import BODIES, decode_request
from dingsdk_flask_fs.request_handler import RequestHandler

_log = logging.getLogger(__name__)

_STATUS: dict[type[DingError], int] = {ProtocolError: 400, StaleEpochError: 409, ClosedError: 410}
_NONCE = "dingsdk.nonce"


def create_app(
    handler: RequestHandler, guard: Guard, verifier: Verifier, max_bytes: int
) -> flask.Flask:
    """Return the WSGI application of a master.

    Whatever passed the guard is answered with a signature. Errors are
    ``{code, message, request_id}``; the id is in the log as well.
    """
    app = flask.Flask(__name__, static_folder=None)

    def admit() -> None:
        environ = flask.request.environ
        environ[_NONCE] = guard.check(environ)

    def serve() -> flask.Response:
        # The kind is the route's own name, so that no request can name another.
        kind = str(flask.request.endpoint)
        body = flask.request.environ["dingsdk.body"]
        return _response(200, handler.handle(decode_request(body, kind, max_bytes)))

    def sign(response: flask.Response) -> flask.Response:
        nonce = flask.request.environ.get(_NONCE)
        if nonce is not None:
            mac = verifier.sign_answer(nonce, response.status_code, response.get_data())
            response.headers[MAC_HEADER] = mac
        return response

    app.before_request(admit)
    app.after_request(sign)
    app.register_error_handler(Refusal, _refused)
    app.register_error_handler(DingError, _failed)
    app.register_error_handler(HTTPException, _not_found)
    app.register_error_handler(Exception, _broken)
    for kind in BODIES:
        app.add_url_rule(
            f"/v1/{kind}", kind, serve, methods=["POST"], provide_automatic_options=False
        )
    app.add_url_rule(
        HEALTH,
        "health",
        lambda: flask.Response(status=204),
        methods=["GET"],
        provide_automatic_options=False,
    )
    return app


def _refused(refusal: Refusal) -> flask.Response:
    response = _response(refusal.status, refusal.body)
    if refusal.retry_after_s:
        response.headers["Retry-After"] = str(refusal.retry_after_s)
    return response


def answer_of(error: DingError) -> tuple[int, bytes]:
    """Return status and body of the answer to a request that failed."""
    response = _failed(error)
    return response.status_code, response.get_data()


def _failed(error: DingError) -> flask.Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    if status == 500:
        return _broken(error)
    told = ("supported", "epoch", "run", "replaced")
    facts = {name: error.facts[name] for name in told if name in error.facts}
    return _error(status, error.code, str(error), **facts)


def _not_found(error: HTTPException) -> flask.Response:
    return _error(error.code or 500, "ProtocolError", error.name)


def _broken(error: Exception) -> flask.Response:
    request_id = secrets.token_hex(8)
    _log.error("request %s failed: a defect of this server", request_id, exc_info=error)
    return _error(500, "InternalError", "see the master's log", request_id=request_id)


def _error(status: int, code: str, message: str, **facts: Any) -> flask.Response:
    facts.setdefault("request_id", secrets.token_hex(8))
    _log.debug("request %s: %s %s", facts["request_id"], code, message)
    return _response(status, json.dumps({"code": code, "message": message, **facts}).encode())


def _response(status: int, body: bytes) -> flask.Response:
    return flask.Response(body, status, content_type="application/json")
