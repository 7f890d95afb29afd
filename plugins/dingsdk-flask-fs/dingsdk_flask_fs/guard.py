"""Access control of the server: checks every request first, and refuses it by default."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dingsdk.errors import AuthError
from dingsdk.runtime import HttpGuard, Refusal, ip_address_of, target_of
from dingsdk_flask_fs.auth import Verifier

HEALTH = "/healthz"
BURST = 32
"""Number of failures that an address may have at once."""
PER_S = 1.0
"""Failures per second that an address may have after that."""
MAX_ENTRIES = 4096
"""Largest number of stored addresses."""
SMALL_BYTES = 16 << 10
"""Largest request of a new worker whose signature is checked even after many failures: the check
costs less than refusing the request. A join is smaller."""


class Throttle:
    """Limits the failures of each address. Thread safe.

    A failure uses up one of ``BURST`` allowed failures; they refill at ``PER_S``. Memory is
    bounded: the entry with the oldest failure is deleted.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of stored entries."""
        return len(self._left)

    def wait_s(self, address: str) -> float:
        """Return how many seconds an address has to wait, 0 if it may send now."""
        with self._lock:
            left = self._allowance(network_of(address))
        return 0.0 if left >= 1 else (1 - left) / PER_S

    def note_failure(self, address: str) -> None:
        """Count a failed request from an address."""
        key = network_of(address)
        with self._lock:
            # Requests that are checked at the same time may use more than is left, but not
            # without limit.
            left = max(self._allowance(key) - 1, -1.0)
            self._left[key] = (left, self._clock())
            self._left.move_to_end(key)
            if len(self._left) > MAX_ENTRIES:
                self._left.popitem(last=False)

    def _allowance(self, key: str) -> float:
        left, since = self._left.get(key, (float(BURST), 0.0))
        return min(float(BURST), left + (self._clock() - since) * PER_S)


def network_of(address: str) -> str:
    """Return the part that one sender cannot vary: an IPv4 address, or the /64 of an IPv6 one."""
    found = ip_address_of(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return address if found is None else str(found)


class Guard(HttpGuard):
    """Also checks a request's method, length and type, and whether the sender knows the secret.

    A request that does not name our key is refused at once. Addresses that send wrong signatures of
    our key too often get 429 without a check of the signature. All workers of a host share an
    address, on loopback with all other programs of the host, so an address alone must never lock
    out a worker. Small requests are therefore always checked, as a worker's first request is small.
    Requests of sessions that have sent genuine requests are also always checked, as only someone
    who can read a worker's requests knows its session's name (64 random bits).

    Args:
        verifier: Checks the signature.
        hosts: As in ``HttpGuard``, like ``any_address`` and ``clock``.
        max_bytes: Size of the largest body.
    """

    def __init__(
        self,
        verifier: Verifier,
        hosts: Collection[str],
        *,
        any_address: bool,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(hosts, any_address=any_address, clock=clock)
        self._verifier = verifier
        self._throttle = Throttle(clock)
        self._max_bytes = max_bytes

    def admit(self, environ: Mapping[str, Any]) -> str | None:
        """Return the nonce of a genuine request; None for the health check.

        Raises:
            Refusal: for any other request.
        """
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
        try:
            body, nonce = self._authenticate(environ, method, target, int(length))
        except AuthError as error:
            raise Refusal(401, "AuthError", "not authorized") from error
        environ["dingsdk.body"] = body  # type: ignore[index]
        return nonce

    def _authenticate(
        self, environ: Mapping[str, Any], method: str, target: str, length: int
    ) -> tuple[bytes, str]:
        address = str(environ.get("REMOTE_ADDR", ""))
        header = environ.get("HTTP_AUTHORIZATION", "")
        is_known = self._verifier.is_known(header)
        if not is_known and length > SMALL_BYTES:
            wait_s = self._throttle.wait_s(address)
            if wait_s > 0:
                raise Refusal(429, "AuthError", "too many failures from this address", wait_s)
        body = environ["wsgi.input"].read(length)
        try:
            return body, self._verifier.verify(header, method, target, body)
        except AuthError:
            if not is_known:
                self._throttle.note_failure(address)
            raise
