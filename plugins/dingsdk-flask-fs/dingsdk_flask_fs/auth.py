"""Signed requests and signed answers: HMAC-SHA256 with the run's secret.

A request has the header ``Authorization: DING-HMAC keyid=..,ts=..,nonce=..,mac=..``, which signs
its method, its target, the time, a nonce and the hash of its body. The answer's signature covers
the request's nonce, the status and the body, so that another program that took the master's port
cannot answer for the master.

A nonce is the random name of a client's session and the number of the request in it. For each
session the verifier keeps the highest number, and which of the last ``WINDOW`` numbers it has
received, as IPsec does: a request is accepted only once, with a few bytes of state per session. A
restarted master has no such state. It refuses older requests by their signed body, which has the
epoch of an earlier start.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Literal

from dingsdk.errors import AuthError
from dingsdk.worker.comm.requests import Secret

SKEW_S = 60
"""How much the clocks of a worker and of the master may differ."""
WINDOW = 1024
"""The last requests of a session that may arrive out of order, once each."""
SWEEP_S = 60.0
"""How often silent sessions are deleted."""
_KEPT_S = 2 * SKEW_S + 1
"""Silence after which a session is deleted: its requests are no longer valid by then."""
MAC_HEADER = "X-Ding-Mac"

Standing = Literal["stranger", "claimant", "known"]

_HEADER = re.compile(
    r"DING-HMAC keyid=([0-9a-f]{16}),ts=([0-9]{1,12}),"
    r"nonce=([0-9a-f]{16})-([0-9]{1,15}),mac=([0-9a-f]{64})"
)


class Signer:
    """Signs requests and checks answers, for clients. Thread safe.

    Args:
        secret: The run's secret.
        clock: Wall clock in seconds.
    """

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        self._key = secret.reveal()
        self._keyid = _key_id(self._key)
        self._clock = clock
        self._session = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def sign(self, method: str, target: str, body: bytes) -> tuple[str, str]:
        """Return the Authorization header of a request, and its nonce."""
        ts = int(self._clock())
        nonce = f"{self._session}-{next(self._numbers)}"
        mac = _mac(self._key, "request", method, target, str(ts), nonce, body=body)
        return f"DING-HMAC keyid={self._keyid},ts={ts},nonce={nonce},mac={mac}", nonce

    def is_answer(self, mac: str, nonce: str, status: int, body: bytes) -> bool:
        """Return whether the answer to the request with ``nonce`` was signed by the master."""
        expected = _mac(self._key, "answer", nonce, str(status), body=body)
        return hmac.compare_digest(mac.encode("utf-8", "replace"), expected.encode())


class Verifier:
    """Verifies requests and signs answers, for the server. Thread safe.

    Args:
        secret: The run's secret.
        clock: Wall clock in seconds.
    """

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        self._key = secret.reveal()
        self._keyid = _key_id(self._key)
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._sweep_at = 0.0

    def standing(self, header: str) -> Standing:
        """Classify a request by its header, without checking the signature.

        A *stranger* does not name our key, and a *claimant* does. For *known*, the session has
        also sent genuine requests recently. Only ``verify`` checks whether the claim is true.
        """
        found = _HEADER.fullmatch(header)
        if found is None or found[1] != self._keyid:
            return "stranger"
        with self._lock:
            return "known" if found[3] in self._sessions else "claimant"

    def verify(self, header: str, method: str, target: str, body: bytes) -> str:
        """Check that a request is genuine, timely and new; return its nonce.

        Raises:
            AuthError: it is not; ``reason`` is for the log, not for the peer.
        """
        found = _HEADER.fullmatch(header)
        if found is None:
            raise _refused("malformed" if header else "missing")
        keyid, ts, session, number, mac = found.groups()
        if keyid != self._keyid:  # no constant-time check: the key id is not secret
            raise _refused("key")
        nonce = f"{session}-{number}"
        expected = _mac(self._key, "request", method, target, ts, nonce, body=body)
        if not hmac.compare_digest(mac.encode(), expected.encode()):
            raise _refused("mac")
        now = self._clock()
        if abs(now - int(ts)) > SKEW_S:
            raise _refused("time")
        self._take(session, int(number), now)
        return nonce

    def sign_answer(self, nonce: str, status: int, body: bytes) -> str:
        """Return the MAC header's value for the answer to a verified request."""
        return _mac(self._key, "answer", nonce, str(status), body=body)

    def _take(self, name: str, number: int, now: float) -> None:
        with self._lock:
            if now >= self._sweep_at or now < self._sweep_at - 2 * SWEEP_S:
                # Requests of a session are too old to be accepted before it is deleted.
                kept = {k: s for k, s in self._sessions.items() if now - s.seen_at <= _KEPT_S}
                self._sessions, self._sweep_at = kept, now + SWEEP_S
            session = self._sessions.setdefault(name, _Session())
            if not session.take(number):
                raise _refused("replay")
            session.seen_at = now


class _Session:
    __slots__ = ("highest", "seen", "seen_at")

    def __init__(self) -> None:
        self.highest = 0
        self.seen = 0  # bit i: number highest - i was taken
        self.seen_at = 0.0

    def take(self, number: int) -> bool:
        """Record a number; False if it was recorded before or is too old to know."""
        ahead = number - self.highest
        if ahead > 0:
            shifted = self.seen << ahead if ahead < WINDOW else 0
            self.seen = (shifted | 1) & ((1 << WINDOW) - 1)
            self.highest = number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self.seen & bit:
            return False
        self.seen |= bit
        return True


def _key_id(key: bytes) -> str:
    """Return an id for the key that reveals nothing about the key."""
    return hmac.digest(key, b"dingsdk key id", "sha256").hex()[:16]


def _mac(key: bytes, *fields: str, body: bytes) -> str:
    text = "\n".join(("DING1 " + fields[0], *fields[1:], hashlib.sha256(body).hexdigest()))
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def _refused(reason: str) -> AuthError:
    return AuthError(f"request refused: {reason}", reason=reason)
