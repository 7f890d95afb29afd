"""What each HTTP server of dingsdk checks before it reads a request; needs no web framework."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from dingsdk.runtime.connections import RareLog

_log = logging.getLogger(__name__)

_OWN_SITES = ("same-origin", "none")


class Refusal(Exception):  # noqa: N818 - an outcome, not an error
    """A refused request: an HTTP status, a constant text, and when to try again."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = math.ceil(retry_after_s)
        self.body = json.dumps({"code": code, "message": message}, separators=(",", ":")).encode()


class HttpGuard(ABC):
    """Checks the request's Host and, if a browser sent it, which page did; then calls ``admit``.

    A web page that rebinds its own domain to this host sends that domain as Host. A page of
    another site sends Origin or Sec-Fetch-Site, which scripts cannot change. The User-Agent is
    never read. Refusals are logged, at most one line a minute.

    Args:
        hosts: Names of this server, in any case.
        port: The port that Host names; None for any.
        any_address: Whether any literal IP address is also accepted as its name; a page that
            rebinds its domain never sends one.
        serves_pages: Whether pages of this server send requests; else those of browsers are
            refused.
        clock: Monotonic seconds, to limit the log.
    """

    name_advice: ClassVar[str] = ""
    """Added to the text for a request to another name."""

    def __init__(
        self,
        hosts: Collection[str],
        *,
        port: int | None = None,
        any_address: bool = False,
        serves_pages: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = frozenset(host.strip("[]").lower() for host in hosts)
        self._port = port
        self._any_address = any_address
        self._serves_pages = serves_pages
        self._refused = RareLog(_log, clock)

    @abstractmethod
    def admit(self, environ: Mapping[str, Any]) -> Any:
        """Check the credentials of a request that passed all other checks, or raise Refusal."""

    def check(self, environ: Mapping[str, Any]) -> Any:
        """Return what ``admit`` returns.

        Args:
            environ: The request as WSGI passes it.

        Raises:
            Refusal: 403 for another host, origin or site; what ``admit`` raises.
        """
        try:
            if not self._is_ours(environ.get("HTTP_HOST", "")):
                raise Refusal(403, "HostError", f"this server has another name{self.name_advice}")
            if not self._is_own_page(environ):
                who = "pages of other sites" if self._serves_pages else "browsers"
                raise Refusal(403, "OriginError", f"{who} are not served")
            return self.admit(environ)
        except Refusal as refusal:
            self._refused.warning(
                "a request was refused: %s %.80r from %s: %s",
                environ["REQUEST_METHOD"],
                target_of(environ).partition("?")[0],  # a query may contain a token
                environ.get("REMOTE_ADDR"),
                refusal.__cause__ or refusal,
            )
            raise

    def _is_ours(self, host: str) -> bool:
        try:
            found = urlsplit(f"//{host}")
            name, port = found.hostname or "", found.port or 80
        except ValueError:
            return False
        if self._port not in (None, port):
            return False
        return name in self._hosts or (self._any_address and ip_address_of(name) is not None)

    def _is_own_page(self, environ: Mapping[str, Any]) -> bool:
        origin, site = environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE")
        if not self._serves_pages:
            return origin is None and site is None
        own = f"http://{environ['HTTP_HOST']}".lower()
        return (origin is None or origin.lower() == own) and (site is None or site in _OWN_SITES)


def ip_address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a literal IP address; None for any other text."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def target_of(environ: Mapping[str, Any]) -> str:
    """Return the request's target as it was sent, which a signature can cover."""
    return str(environ.get("REQUEST_URI") or environ.get("PATH_INFO", ""))
