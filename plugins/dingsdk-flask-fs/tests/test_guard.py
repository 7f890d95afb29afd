"""Requests without the secret have no effect, with any route, method, host or body."""

from __future__ import annotations

import io
import itertools
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dingsdk_flask_fs.auth import MAC_HEADER, Verifier
from dingsdk_flask_fs.guard import Guard
from dingsdk_flask_fs.transport import FlaskFSTransport

from dingsdk.runtime import Refusal, Secret
from dingsdk.worker.comm.requests.messages import BODIES

METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"),
    *("PROPFIND", "FOO"),
)
TARGETS = (*(f"/v1/{kind}" for kind in BODIES), "/healthz", "/", "/v1/", "/static/x", "/console")
OTHER = "another secret of good length"


@pytest.fixture
def routes(served: Any) -> set[str]:
    """All rules of the running application's url_map."""
    app = served.end._server._server.application
    return {rule.rule for rule in app.url_map.iter_rules()}


def bad_credentials(served: Any, target: str, body: bytes, method: str) -> Iterator[dict[str, str]]:
    kind = {"Content-Type": "application/json"}
    peer = served.peer()
    yield kind
    yield {**kind, "Authorization": ""}
    yield {**kind, "Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
    yield {**kind, "Authorization": "DING-HMAC keyid=\xe9,ts=\xb2,nonce=\xff,mac=\xfc"}
    yield served.peer(OTHER).signed(target, body, method)
    yield served.peer(clock=lambda: time.time() - 61.5).signed(target, body, method)
    yield served.peer(clock=lambda: time.time() + 62.5).signed(target, body, method)
    yield peer.signed(target, body + b" ", method)
    yield peer.signed(target + "x", body, method)


def test_only_the_request_kinds_and_the_health_check_have_routes(routes: set[str]) -> None:
    assert routes == {*(f"/v1/{kind}" for kind in BODIES), "/healthz"}


def test_every_route_and_method_refuses_bad_credentials_without_effect(
    served: Any, routes: set[str]
) -> None:
    body = served.peer().envelope("join", {"role": "collector", "resource": {}, "idem": "i"})
    bodies = set()
    # Each request uses another source address, because frequent failures get an address blocked.
    sources = (f"127.{n >> 8}.{n & 255}.2" for n in itertools.count(1))
    for target, method in itertools.product({*TARGETS, *routes}, METHODS):
        if (method, target) == ("GET", "/healthz"):
            continue
        for headers in bad_credentials(served, target, body, method):
            status, answer, sent = served.peer().send(target, body, headers, method, next(sources))
            assert status == (401 if method == "POST" else 405), (method, target, headers)
            assert MAC_HEADER not in sent
            assert not any(name.lower().startswith("access-control") for name in sent)
            if answer:
                bodies.add(answer)
    assert len(bodies) == 2  # one per status, independent of the mistake
    assert served.listener.events == []


def test_health_check_reveals_nothing(served: Any) -> None:
    status, body, headers = served.peer().send("/healthz", headers={}, method="GET")
    assert (status, body) == (204, b"")
    assert headers.keys() <= {"Date", "Server", "Content-Type", "Content-Length", "Connection"}


class Guarded:
    """A guard with a fake clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        secret = Secret(OTHER.encode(), source="test", is_explicit=True)
        self.guard = Guard(
            Verifier(secret),
            {"Here"},
            any_address=False,
            max_bytes=100,
            clock=lambda: self.now,
        )

    def refusal(self, **changes: Any) -> Refusal:
        """Return the refusal of a request without a signature, with these changes."""
        environ = {
            "HTTP_HOST": "here:80",
            "REQUEST_METHOD": "POST",
            "REQUEST_URI": "/v1/turn",
            "CONTENT_LENGTH": "2",
            "CONTENT_TYPE": "application/json",
            "REMOTE_ADDR": "10.0.0.1",
            "wsgi.input": io.BytesIO(b"{}"),
            **changes,
        }
        with pytest.raises(Refusal) as caught:
            self.guard.check(environ)
        return caught.value


@pytest.mark.parametrize(
    ("length", "status"),
    [("", 401), ("100", 401), ("101", 413), ("x", 400), ("-1", 400), ("²", 400)],
)
def test_length_of_a_request_is_a_number_within_the_limit(length: str, status: int) -> None:
    assert Guarded().refusal(CONTENT_LENGTH=length).status == status


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"HTTP_HOST": "elsewhere"}, "HostError", "this server has another name"),
        ({"HTTP_ORIGIN": "null"}, "OriginError", "browsers are not served"),
        ({"REQUEST_METHOD": "PUT"}, "MethodError", "requests are POST"),
        ({"CONTENT_LENGTH": "x"}, "ProtocolError", "Content-Length is no number"),
        ({"CONTENT_LENGTH": "101"}, "PayloadTooLargeError", "the message is too large"),
        ({"CONTENT_TYPE": ""}, "UnsupportedMediaError", "messages are application/json"),
        ({"CONTENT_TYPE": "json"}, "UnsupportedMediaError", "messages are application/json"),
        (
            {"HTTP_CONTENT_ENCODING": "gzip"},
            "UnsupportedMediaError",
            "messages are application/json",
        ),
        ({}, "AuthError", "not authorized"),
    ],
)
def test_refusal_contains_its_code_and_reason(
    changes: dict[str, str], code: str, message: str
) -> None:
    assert json.loads(Guarded().refusal(**changes).body) == {"code": code, "message": message}


def test_refusals_are_logged_at_a_limited_rate_on_one_line(served: Any, caplog: Any) -> None:
    peer = served.peer()
    for _ in range(50):
        peer.send("/v1/join%0d%0aforged", b"", {})
    lines = [record.getMessage() for record in caplog.records]
    (refusal,) = [line for line in lines if "was refused" in line]
    assert "\n" not in refusal
    assert "\r" not in refusal


def test_listener_is_on_loopback_and_reports_its_port(served: Any) -> None:
    listening = served.end._server._server.socket.getsockname()
    assert listening == ("127.0.0.1", served.port)
    assert served.address == f"http://127.0.0.1:{served.port}"


@pytest.mark.parametrize(
    ("host", "names"),
    [("127.0.0.1", set()), ("0.0.0.0", {"node7", "node7.example.org", "10.1.2.3", "::"})],
)
def test_reachable_server_accepts_the_names_of_its_host_in_any_case(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, host: str, names: set[str]
) -> None:
    from .conftest import SECRET, Peer, listener

    monkeypatch.setenv("DINGSDK_SECRET", SECRET)
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7")
    monkeypatch.setattr(socket, "getfqdn", lambda: "Node7.Example.ORG")
    always = {"localhost", "127.0.0.1", "::1", "alias"}
    transport = FlaskFSTransport({"host": host, "allowed_hosts": ["Alias"]}, tmp_path)
    peer = Peer(int(transport.master_end().open(listener()).rpartition(":")[2]), SECRET)
    for name in ("node7", "node7.example.org", "10.1.2.3", "::", "example.org", *always):
        for form in (name, name.upper()):
            sent = {"Host": f"[{form}]:80" if ":" in form else form}
            expected = 204 if name in names | always else 403
            assert peer.send("/healthz", headers=sent, method="GET")[0] == expected, form
    transport.close()


def test_error_bodies_contain_an_id_and_no_internals(served: Any) -> None:
    peer = served.peer()
    status, answer, _ = peer.send("/v1/join", b"{")
    content = json.loads(answer)
    assert status == 400
    assert content.keys() == {"code", "message", "request_id"}
    assert "Traceback" not in content["message"]
    status, answer, _ = peer.send("/v1/nothing", b"{}")
    assert status == 404
    content = json.loads(answer)
    assert content.keys() == {"code", "message", "request_id"}
    assert (content["code"], content["message"]) == ("ProtocolError", "Not Found")
