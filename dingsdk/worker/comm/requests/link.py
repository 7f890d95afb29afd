"""A worker's connection to a master, and the answers to requests."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any, NamedTuple, Protocol, TypeVar

from dingsdk.errors import ClosedError, DingError, ProtocolError, StaleEpochError

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
