"""A worker's connection to a master, and the answers to requests."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from dingsdk.errors import ClosedError, DingError, ProtocolError, StaleEpochError
from dingsdk.runtime.connections import Peer

_log = logging.getLogger(__name__)

_STATUS: dict[type[DingError], int] = {ProtocolError: 400, StaleEpochError: 409, ClosedError: 410}
_Key = TypeVar("_Key", contravariant=True)


class LinkError(Exception):
    """There was no valid answer from our master: the same request may be sent again."""


class ForeignAnswerError(LinkError):
    """The other end answered, but does not know the secret or does not accept ours."""


class Answer(NamedTuple):
    """An answer that was verified to come from the master.

    ``status`` is 200, or the status of an error, see ``answer_of``.
    """

    status: int
    body: bytes


class Link(Protocol[_Key]):
    """A connection to a master, for one request at a time."""

    def post(self, target: str, body: bytes, key: _Key, deadline: float) -> Answer:
        """Send a request and return its answer.

        Args:
            target: ``/v1/<kind of request>``.
            key: Proves that both ends know the run's secret.
            deadline: Time on the scheduler's clock.

        Raises:
            LinkError: there was no answer before the deadline.
            ForeignAnswerError: the other end does not know the secret.
        """

    def close(self) -> None:
        """End the current request and every later one with LinkError."""


_Channel = TypeVar("_Channel", bound=Peer)


class ReconnectingLink(ABC, Generic[_Key, _Channel]):
    """A link that opens a channel when it needs one, and closes it after an error.

    Thread safe: its requests wait for each other. Its clock is ``time.monotonic``.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """Errors of ``exchange`` that ``post`` converts to LinkError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._channel: _Channel | None = None
        self._is_closed = False

    @abstractmethod
    def exchange(self, target: str, body: bytes, key: _Key, deadline: float) -> Answer:
        """Send a request and return its answer; if this raises, ``post`` closes the channel.

        It opens a channel if there is none, and passes it to ``keep``.
        """

    def post(self, target: str, body: bytes, key: _Key, deadline: float) -> Answer:
        """Send a request and return its answer, as ``Link.post``."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise LinkError("the connection is busy")
        try:
            return self.exchange(target, body, key, deadline)
        except BaseException as error:
            self.hang_up()
            if isinstance(error, self.errors):
                raise LinkError(str(error) or type(error).__name__) from error
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the current request and every later one with LinkError."""
        with self._state:
            self._is_closed = True
            if self._channel is not None:
                self._channel.shut_down()
        # The thread in a request closes the descriptor itself, so that it is not reused too early.
        if self._lock.acquire(timeout=1.0):
            self.hang_up()
            self._lock.release()

    def keep(self, channel: _Channel) -> None:
        """Make ``channel`` the one that ``close`` shuts down. Raises LinkError after ``close``."""
        with self._state:
            if self._is_closed:
                channel.close()
                raise LinkError("the connection is closed")
            self._channel = channel

    def hang_up(self) -> None:
        """Close the channel, if there is one; the lock is held."""
        with self._state:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def answer_of(error: Exception) -> Answer:
    """Return the answer to a request that failed: JSON with code, message and request_id.

    An error that the sender did not cause is logged, and its text is not sent.
    """
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    if not isinstance(error, DingError) or status == 500:
        request_id = secrets.token_hex(8)
        _log.error("request %s failed: a defect of this server", request_id, exc_info=error)
        return error_answer(500, "InternalError", "see the master's log", request_id=request_id)
    told = ("supported", "epoch", "run", "replaced")
    facts = {name: error.facts[name] for name in told if name in error.facts}
    return error_answer(status, error.code, str(error), **facts)


def error_answer(status: int, code: str, message: str, **facts: Any) -> Answer:
    """Return an answer that reports an error."""
    facts.setdefault("request_id", secrets.token_hex(8))
    _log.debug("request %s: %s %s", facts["request_id"], code, message)
    return Answer(status, json.dumps({"code": code, "message": message, **facts}).encode())
