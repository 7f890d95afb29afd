"""What the guard of each HTTP server refuses before it looks at the credentials."""

from __future__ import annotations

from typing import Any

import pytest

from dingsdk.runtime import HttpGuard, Refusal


class Open(HttpGuard):
    """A guard that needs no credentials."""

    def admit(self, environ: Any) -> str:
        return "admitted"


def outcome(host: str, *, headers: dict[str, str] | None = None, **options: Any) -> Any:
    """Return what the guard says to a request, or the status of its refusal."""
    environ = {"HTTP_HOST": host, "REQUEST_METHOD": "GET", **(headers or {})}
    try:
        return Open(["Here", "[::1]"], **options).check(environ)
    except Refusal as refusal:
        return refusal.status


@pytest.mark.parametrize(
    ("port", "host", "is_admitted"),
    [
        (None, "here:1", True),
        (None, "HERE", True),
        (None, "[::1]:80", True),
        (8080, "here:8080", True),
        (8080, "here", False),
        (8080, "here:80", False),
        (80, "here", True),
        (80, "here:80", True),
        (None, "here.evil", False),
        (None, "10.0.0.1", False),
        (None, "", False),
        (None, "[::1", False),
        (None, "here:x", False),
        (None, "a@b", False),
    ],
)
def test_host_is_a_name_of_the_server_with_its_port(
    port: int | None, host: str, is_admitted: bool
) -> None:
    assert outcome(host, port=port) == ("admitted" if is_admitted else 403)


def test_any_address_is_a_name_of_a_server_on_all_addresses() -> None:
    assert outcome("10.0.0.1:5", any_address=True) == "admitted"
    assert outcome("evil.example", any_address=True) == 403


@pytest.mark.parametrize("serves_pages", [False, True])
@pytest.mark.parametrize(
    ("headers", "is_own_page"),
    [
        ({"HTTP_ORIGIN": "http://here:8080"}, True),
        ({"HTTP_ORIGIN": "http://HERE:8080", "HTTP_SEC_FETCH_SITE": "same-origin"}, True),
        ({"HTTP_SEC_FETCH_SITE": "none"}, True),
        ({"HTTP_ORIGIN": "null"}, False),
        ({"HTTP_ORIGIN": "https://here:8080"}, False),
        ({"HTTP_ORIGIN": "http://here"}, False),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, False),
        ({"HTTP_SEC_FETCH_SITE": ""}, False),
    ],
)
def test_browsers_are_served_only_for_own_pages_of_a_server_that_has_pages(
    headers: dict[str, str], is_own_page: bool, serves_pages: bool
) -> None:
    found = outcome("here:8080", headers=headers, serves_pages=serves_pages)
    assert found == ("admitted" if is_own_page and serves_pages else 403)


def test_log_of_a_refusal_has_its_reason_and_no_query(caplog: pytest.LogCaptureFixture) -> None:
    uri = {"REQUEST_URI": "/?token=secret", "REMOTE_ADDR": "10.0.0.1"}
    assert outcome("evil.example", headers=uri) == 403
    assert "GET '/' from 10.0.0.1: this server has another name" in caplog.text
    assert "secret" not in caplog.text
