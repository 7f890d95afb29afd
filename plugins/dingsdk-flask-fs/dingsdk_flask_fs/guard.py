"""Who may speak to the server: every request passes here first, and is refused by default."""

from __future__ import annotations

import ipaddress
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from dingsdk.errors import AuthError
from dingsdk_flask_fs.auth import Verifier

_log = logging.getLogger(__name__)

HEALTH = "/healthz"
LOG_EVERY_S = 1.0
"""Shortest time between two lines of the log about refused requests."""
BURST = 32
"""Failures that an address may have at once."""
PER_S = 1.0
"""Failures a second that an address may have for ever after."""
MAX_ENTRIES = 4096
"""Addresses, with their kinds of sender, that are remembered."""
SMALL_BYTES = 16 << 10
"""Largest request of a new worker whose signature is checked even after many failures: that costs
less than to refuse it. A join is smaller."""


class Refusal(Exception):  # noqa: N818 - an outcome, not an error
    """Why a request goes no further: an HTTP status, a constant body, and when to come back."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = math.ceil(retry_after_s)
        self.body = f'{{"code":"{code}","message":"{message}"}}'.encode()


class Throttle:
    """One allowance of failures for each address and kind of sender. Thread safe.

    A failure takes one of ``burst``, which come back at ``per_s``. While there is none left,
    the server does no work for such a sender. Memory is bounded: the address that was heard of
    longest ago is forgotten.

    Args:
        burst: Failures allowed at once.
        per_s: Failures allowed for ever after.
        max_entries: Addresses and kinds remembered.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        burst: int = BURST,
        per_s: float = PER_S,
        max_entries: int = MAX_ENTRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Number of entries remembered."""
        return len(self._left)

    def wait_s(self, address: str, kind: str) -> float:
        """Return how long such a sender has to wait, 0 where it may be listened to now."""
        with self._lock:
            left = self._allowance((network_of(address), kind))
        return 0.0 if left >= 1 else (1 - left) / self._per_s

    def note_failure(self, address: str, kind: str) -> None:
        """Count a failed request of an address."""
        key = network_of(address), kind
        with self._lock:
            # Requests that were being checked at the same time may overdraw it; not for ever.
            left = max(self._allowance(key) - 1, -1.0)
            self._left[key] = (left, self._clock())
            self._left.move_to_end(key)
            if len(self._left) > self._max_entries:
                self._left.popitem(last=False)

    def _allowance(self, key: tuple[str, str]) -> float:
        left, since = self._left.get(key, (float(self._burst), 0.0))
        return min(float(self._burst), left + (self._clock() - since) * self._per_s)


def ip_address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a literal address; None for anything else."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def network_of(address: str) -> str:
    """Return what one sender cannot vary: an IPv4 address, the /64 of an IPv6 address."""
    found = ip_address_of(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return address if found is None else str(found)


class Guard:
    """Checks a request before anything reads its body.

    The order is: whom it was sent to (Host), who made it send (a browser never may), how
    much, of which type, and whether the sender holds the secret.

    Whoever fails to prove that too often is answered 429 unheard. All workers of a host share
    an address, on loopback with everybody else there, so an address alone must never lock a
    worker out. What a request claims decides which allowance it draws on: one for requests that do
    not name our key, one for those that do. Small ones that name it are always checked, as the
    first request of a worker is small; so are those of sessions that have sent genuine requests,
    as only who can read a worker's requests knows its session's name (64 random bits). So nobody
    is kept from joining or working by what others send.

    Args:
        verifier: Checks the signature.
        throttle: Counts the failures.
        hosts: Names that this server goes by, lower case, without the port.
        any_address: Whether any literal IP address is one of its names too. A page that
            rebinds its own domain to this host sends that domain as Host, never an address.
        max_bytes: The largest body.
        clock: Monotonic seconds, for the pace of the log.
    """

    def __init__(
        self,
        verifier: Verifier,
        throttle: Throttle,
        hosts: Collection[str],
        *,
        any_address: bool,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verifier = verifier
        self._throttle = throttle
        self._hosts = frozenset(host.lower() for host in hosts)
        self._any_address = any_address
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._refused = 0
        self._log_at = 0.0

    def check(self, environ: Mapping[str, Any]) -> str | None:
        """Return the nonce of a genuine request; None for the health check.

        Raises:
            Refusal: anything else.
        """
        try:
            return self._check(environ)
        except Refusal as refusal:
            self._note(environ, refusal)
            raise

    def _check(self, environ: Mapping[str, Any]) -> str | None:
        if not self._is_ours(environ.get("HTTP_HOST", "")):
            raise Refusal(403, "HostError", "this server has another name")
        if "HTTP_ORIGIN" in environ or "HTTP_SEC_FETCH_SITE" in environ:
            raise Refusal(403, "OriginError", "browsers are not served")
        method, target = environ["REQUEST_METHOD"], target_of(environ)
        if method == "GET" and target == HEALTH:
            return None
        if method != "POST":
            raise Refusal(405, "MethodError", "requests are POST")
        length = environ.get("CONTENT_LENGTH") or "0"
        if not (length.isascii() and length.isdigit()):
            raise Refusal(400, "ProtocolError", "Content-Length is no number")
        if int(length) > self._max_bytes:
            raise Refusal(413, "PayloadTooLargeError", "the message is too large")
        kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
        if kind != "application/json" or "HTTP_CONTENT_ENCODING" in environ:
            raise Refusal(415, "UnsupportedMediaError", "messages are application/json")
        body, nonce = self._authenticate(environ, method, target, int(length))
        environ["dingsdk.body"] = body  # type: ignore[index]
        return nonce

    def _authenticate(
        self, environ: Mapping[str, Any], method: str, target: str, length: int
    ) -> tuple[bytes, str]:
        address = str(environ.get("REMOTE_ADDR", ""))
        header = environ.get("HTTP_AUTHORIZATION", "")
        standing = self._verifier.standing(header)
        is_cheap = standing == "claimant" and length <= SMALL_BYTES
        if standing != "known" and not is_cheap:
            wait_s = self._throttle.wait_s(address, standing)
            if wait_s > 0:
                raise Refusal(429, "AuthError", "too many failures from this address", wait_s)
        body = environ["wsgi.input"].read(length)
        try:
            return body, self._verifier.verify(header, method, target, body)
        except AuthError as error:
            if standing != "known":
                self._throttle.note_failure(address, standing)
            raise Refusal(401, "AuthError", "not authorized") from error

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._hosts or (self._any_address and ip_address_of(name) is not None)

    def _note(self, environ: Mapping[str, Any], refusal: Refusal) -> None:
        """Log refusals, at most one line a second whatever comes."""
        with self._lock:
            self._refused += 1
            now = self._clock()
            if now < self._log_at:
                return
            count, self._refused = self._refused, 0
            self._log_at = now + LOG_EVERY_S
        _log.warning(
            "refused %d request(s); the last: %s %.80r from %s: %s",
            count,
            environ["REQUEST_METHOD"],
            target_of(environ),
            environ.get("REMOTE_ADDR"),
            refusal.__cause__ or refusal,
        )


def target_of(environ: Mapping[str, Any]) -> str:
    """Return the request's target as it was sent: what the signature covers."""
    return str(environ.get("REQUEST_URI") or environ.get("PATH_INFO", ""))
