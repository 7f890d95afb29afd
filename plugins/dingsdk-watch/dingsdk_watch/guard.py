"""Access to the page: requests are accepted here, or refused with a status and a reason."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from werkzeug.wrappers import Request

from dingsdk.errors import InsecureBindError
from dingsdk.runtime import is_loopback, url_host

TOKEN_PARAMETER = "token"
SAFE_SITES = ("same-origin", "none")
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """A request that is answered with ``status`` and ``text``."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Guard:
    """Checks each request before anything else reads it.

    Args:
        token: Secret that gives access: once in the address of the page, or as a bearer token.
        session: Value of the cookie that replaces the token.
        hosts: Names that the header ``Host`` may have: as ``name:port``, on port 80 also ``name``.
        port: Port of the server.
    """

    def __init__(self, token: str, session: str, hosts: Iterable[str], port: int) -> None:
        self._token = token
        self._session = session
        self.hosts = frozenset(f"{host}:{port}" for host in hosts)
        if port == 80:
            self.hosts |= frozenset(hosts)
        # Cookies do not depend on ports, so that each server on a host needs its own name.
        self.cookie = f"dingsdk_watch_{port}"

    def check(self, request: Request) -> bool:
        """Accept a request, or refuse it.

        Returns:
            Whether it has the token in its address, so that the answer must set the cookie.

        Raises:
            Refusal: 403 for a foreign host, origin or site, 401 without token or cookie.
        """
        if request.host.lower() not in self.hosts:
            raise Refusal(403, "this server does not answer to that Host; see --allow-host")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{request.host.lower()}":
            raise Refusal(403, "requests of other origins are refused")
        if request.headers.get("Sec-Fetch-Site", "none") not in SAFE_SITES:
            raise Refusal(403, "requests that other sites cause are refused")
        if _is_same(request.cookies.get(self.cookie, ""), self._session):
            return False
        if _is_same(request.headers.get("Authorization", ""), f"Bearer {self._token}"):
            return False
        if request.path == "/" and _is_same(request.args.get(TOKEN_PARAMETER, ""), self._token):
            return True
        raise Refusal(
            401,
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
    try:
        shown = url_host(str(ipaddress.ip_address(host.strip("[]"))))
    except ValueError:
        shown = host.lower()
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
