"""The Flask application: the page, its files, and the data as JSON and for Prometheus."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from dingsdk.runtime import Refusal
from dingsdk_watch.guard import Guard
from dingsdk_watch.metrics import CONTENT_TYPE, exposition
from dingsdk_watch.runs import Run

_log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def create_app(runs: Sequence[Run], guard: Guard, session: str) -> flask.Flask:
    """Return the WSGI application.

    Args:
        runs: The runs that it shows.
        guard: Checks each request.
        session: Value of the cookie.
    """
    app = flask.Flask(__name__, static_folder=None)

    def admit() -> flask.Response | None:
        if not guard.check(flask.request.environ):
            return None
        # The redirect removes the token from the address bar and from the history.
        response = flask.Response(status=303, headers={"Location": "/"})
        response.set_cookie(guard.cookie, session, httponly=True, samesite="Strict", path="/")
        return response

    def harden(response: flask.Response) -> flask.Response:
        response.headers.update(HEADERS)
        return response

    def run_of_request() -> Run:
        index = flask.request.args.get("run", 0, type=int)
        if not 0 <= index < len(runs):
            raise Refusal(404, "NotFound", f"run is {index}; there are {len(runs)}")
        return runs[index]

    def status() -> flask.Response:
        return _json({"format": 1, "runs": [run.status() for run in runs]})

    def curves() -> flask.Response:
        return _json({"format": 1, "runs": [run.curves() for run in runs]})

    def log() -> flask.Response:
        run = run_of_request()
        names = run.logs()
        name = flask.request.args.get("name") or (names[0] if names else "")
        text = run.tail(name) if name else ""
        if text is None:
            raise Refusal(404, "NotFound", "there is no such log")
        return _json({"format": 1, "logs": names, "name": name, "text": text})

    def metrics() -> flask.Response:
        return flask.Response(exposition(runs), content_type=CONTENT_TYPE)

    app.before_request(admit)
    app.after_request(harden)
    app.register_error_handler(Refusal, lambda refusal: _text(refusal.status, str(refusal)))
    app.register_error_handler(HTTPException, lambda error: _text(error.code or 500, error.name))
    app.register_error_handler(Exception, _broken)
    for path, (name, content_type) in FILES.items():
        _add(app, path, _file(name, content_type))
    for path, view in {
        "/status.json": status,
        "/curves.json": curves,
        "/log.json": log,
        "/metrics": metrics,
    }.items():
        _add(app, path, view)
    return app


def _add(app: flask.Flask, path: str, view: Callable[[], flask.Response]) -> None:
    app.add_url_rule(path, path, view, methods=["GET"], provide_automatic_options=False)


def _file(name: str, content_type: str) -> Callable[[], flask.Response]:
    content = (STATIC / name).read_bytes()
    return lambda: flask.Response(content, content_type=content_type)


def _json(value: Any) -> flask.Response:
    return flask.Response(json.dumps(value), content_type="application/json")


def _text(status: int, text: str) -> flask.Response:
    return flask.Response(f"{text}\n", status, content_type="text/plain; charset=utf-8")


def _broken(error: Exception) -> flask.Response:
    _log.error("a request failed: a defect of this server", exc_info=error)
    return _text(500, "see the log of dingsdk watch")
