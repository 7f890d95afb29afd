"""Signed requests and signed answers: HMAC-SHA256 with the run's secret.

A request has the header ``Authorization: DING-HMAC keyid=..,ts=..,nonce=..,mac=..``, which signs
its method, its target, the time, a nonce and the hash of its body. The answer's signature covers
the request's nonce, the status and the body, so that another program that took the master's port
cannot answer for the master.

A nonce is the random name of a session, which is a client's connection, and the number of the
request in it. A client sends the requests of a session one after the other, so the verifier keeps
only the highest number of each session: a request is accepted only once. A restarted master has no
such state. It refuses older requests by their signed body, which has the epoch of an earlier start.
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

from dingsdk.errors import AuthError
from dingsdk.worker.comm.requests import Secret

SKEW_S = 60
"""How much the clocks of a worker and of the master may differ."""
SWEEP_S = 60.0
"""How often silent sessions are deleted."""
_KEPT_S = 2 * SKEW_S + 1
"""Silence after which a session is deleted: its requests are no longer valid by then."""
MAC_HEADER = "X-Ding-Mac"

_HEADER = re.compile(
    r"DING-HMAC keyid=([0-9a-f]{16}),ts=([0-9]{1,12}),"
    r"nonce=([0-9a-f]{16})-([0-9]{1,15}),mac=([0-9a-f]{64})"
)


class _Keyed:
    """Has the run's secret, and the time.

    Args:
        secret: The run's secret.
        clock: Wall clock in seconds.
    """

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        self._key = secret.reveal()
        # An id that reveals nothing about the key.
        self._keyid = hmac.digest(self._key, b"dingsdk key id", "sha256").hex()[:16]
        self._clock = clock


class Signer(_Keyed):
    """Signs the requests of one session, and checks the answers."""

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        super().__init__(secret, clock)
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


class Verifier(_Keyed):
    """Verifies requests and signs answers, for the server. Thread safe."""

    def __init__(self, secret: Secret, clock: Callable[[], float] = time.time) -> None:
        super().__init__(secret, clock)
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[int, float]] = {}
        """The highest number of each session, and when it was received."""
        self._sweep_at = 0.0

    def is_known(self, header: str) -> bool:
        """Return whether the session that a header names has sent genuine requests recently.

        Only ``verify`` checks whether the request is one of that session.

        Raises:
            AuthError: the header does not name our key.
        """
        session = self._fields_of(header)[2]
        with self._lock:
            return session in self._sessions

    def verify(self, header: str, method: str, target: str, body: bytes) -> str:
        """Check that a request is genuine, timely and new; return its nonce.

        Raises:
            AuthError: it is not; ``reason`` is for the log, not for the peer.
        """
        _, ts, session, number, mac = self._fields_of(header)
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

    def _fields_of(self, header: str) -> tuple[str, ...]:
        found = _HEADER.fullmatch(header)
        if found is None:
            raise _refused("malformed" if header else "missing")
        if found[1] != self._keyid:  # no constant-time check: the key id is not secret
            raise _refused("key")
        return found.groups()

    def _take(self, session: str, number: int, now: float) -> None:
        with self._lock:
            if now >= self._sweep_at or now < self._sweep_at - 2 * SWEEP_S:
                # Requests of a session are too old to be accepted before it is deleted.
                kept = {k: s for k, s in self._sessions.items() if now - s[1] <= _KEPT_S}
                self._sessions, self._sweep_at = kept, now + SWEEP_S
            highest, _ = self._sessions.get(session, (0, 0.0))
            if number <= highest:
                raise _refused("replay")
            self._sessions[session] = number, now


def _mac(key: bytes, *fields: str, body: bytes) -> str:
    text = "\n".join(("DING1 " + fields[0], *fields[1:], hashlib.sha256(body).hexdigest()))
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def _refused(reason: str) -> AuthError:
    return AuthError(f"request refused: {reason}", reason=reason)
