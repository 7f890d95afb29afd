"""Access to the page: a request needs the token or the cookie."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from werkzeug.wrappers import Request

from dingsdk.errors import InsecureBindError
from dingsdk.runtime import HttpGuard, Refusal, ip_address_of, is_loopback, url_host

TOKEN_PARAMETER = "token"
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Guard(HttpGuard):
    """Also checks whether a request has the token or the cookie.

    Args:
        token: Secret that gives access: once in the address of the page, or as a bearer token.
        session: Value of the cookie that replaces the token.
        hosts: Names that the header ``Host`` may have.
        port: Port of the server.
    """

    name_advice = "; see --allow-host"

    def __init__(self, token: str, session: str, hosts: Collection[str], port: int) -> None:
        super().__init__(hosts, port=port, serves_pages=True)
        self._token = token
        self._session = session
        # Cookies do not depend on ports, so that each server on a host needs its own name.
        self.cookie = f"dingsdk_watch_{port}"

    def admit(self, environ: Mapping[str, Any]) -> bool:
        """Return whether a request has the token in its address: the answer must set the cookie.

        Raises:
            Refusal: 401 without token or cookie.
        """
        request = Request({**environ})
        if _is_same(request.cookies.get(self.cookie, ""), self._session):
            return False
        if _is_same(request.headers.get("Authorization", ""), f"Bearer {self._token}"):
            return False
        if request.path == "/" and _is_same(request.args.get(TOKEN_PARAMETER, ""), self._token):
            return True
        raise Refusal(
            401,
            "AuthError",
            "open the address that `dingsdk watch` printed, or send its token as a bearer token",
        )


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def allowed_hosts(host: str, names: Iterable[str]) -> list[str]:
    """Return the host names that requests to a server on ``host`` may use, its own one first.

    Raises:
        InsecureBindError: it listens beyond this machine, and no name is given.
    """
    named = [url_host(name.lower()) for name in names]
    shown = url_host(str(ip_address_of(host.strip("[]")) or host.lower()))
    if is_loopback(shown):
        return [shown, *_LOOPBACK_NAMES, *named]
    if not named:
        raise InsecureBindError(
            f"--host {host} is reached from other machines, over HTTP that others on the way can "
            "read; if that is meant, name the hosts that browsers use by --allow-host",
            path="--host",
            found=host,
        )
    return named
