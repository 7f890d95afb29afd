"""Signed requests and signed answers: HMAC-SHA256 with the run's secret.

A request carries ``Authorization: DING-HMAC keyid=..,ts=..,nonce=..,mac=..`` over its method,
its target, the time, a nonce and the hash of its body. Its answer is signed over the request's
nonce, the status and the body, so that whoever took the master's port cannot answer for it.

A nonce is the random name of a client's session and the number of the request in it. The
verifier keeps, for each session, the highest number and which of the last ``WINDOW`` it has
seen, as IPsec does: a request is taken once, for a few bytes a session whatever the load.
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
"""How far the clock of a worker may be from that of the master."""
WINDOW = 1024
"""Requests of a session that may arrive out of order, and once each."""
SWEEP_S = 60.0
"""How often sessions that are silent are forgotten."""
_KEPT_S = 2 * SKEW_S + 1
"""Silence after which a session is forgotten: none of its requests is valid any more."""
MAC_HEADER = "X-Ding-Mac"

Standing = Literal["stranger", "claimant", "known"]

_HEADER = re.compile(
    r"DING-HMAC keyid=([0-9a-f]{16}),ts=([0-9]{1,12}),"
    r"nonce=([0-9a-f]{16})-([0-9]{1,15}),mac=([0-9a-f]{64})"
)


class Signer:
    """The client's half. Thread safe.

    Args:
        secret: The run's.
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
        """Return whether the answer to the request with ``nonce`` is the master's."""
        expected = _mac(self._key, "answer", nonce, str(status), body=body)
        return hmac.compare_digest(mac.encode("utf-8", "replace"), expected.encode())


class Verifier:
    """The server's half. Thread safe.

    Args:
        secret: The run's.
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
        """Return what a request claims, at no cost.

        A *stranger* does not even name our key, a *claimant* does, and the session of one that
        is *known* has sent genuine requests lately. Only ``verify`` tells whether it is true.
        """
        found = _HEADER.fullmatch(header)
        if found is None or found[1] != self._keyid:
            return "stranger"
        with self._lock:
            return "known" if found[3] in self._sessions else "claimant"

    def verify(self, header: str, method: str, target: str, body: bytes) -> str:
        """Return the nonce of a request that is genuine, timely and new.

        Raises:
            AuthError: it is not; ``reason`` is for the log, not for the peer.
        """
        found = _HEADER.fullmatch(header)
        if found is None:
            raise _refused("malformed" if header else "missing")
        keyid, ts, session, number, mac = found.groups()
        if keyid != self._keyid:  # no secret: every genuine request shows it
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
                # A request is refused for its time before its session is forgotten.
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
        """Note a number; False when it was taken before or is too old to tell."""
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
    """Return a name for the key that says nothing about it."""
    return hmac.digest(key, b"dingsdk key id", "sha256").hex()[:16]


def _mac(key: bytes, *fields: str, body: bytes) -> str:
    text = "\n".join(("DING1 " + fields[0], *fields[1:], hashlib.sha256(body).hexdigest()))
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def _refused(reason: str) -> AuthError:
    return AuthError(f"request refused: {reason}", reason=reason)
