"""The message format: the envelope of requests, and the tasks and answers in it.

An envelope is ``{v, run, epoch, worker, inc, type, body}``. Unknown fields are
ignored, so that a later version may add fields; another ``v`` is refused with the supported
versions.

Tasks and answers are numbered from 1 within an incarnation. Each side keeps the items that it sent
until the other side has confirmed their numbers, and skips numbers that it has already received: a
request that is repeated because its reply was lost takes effect only once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from dingsdk.config.section import Number
from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ProtocolError
from dingsdk.worker.comm.transport import TaskAnswer, TaskMessage

VERSION = 2
"""Version of the messages between workers and their master."""
MAX_WAIT_S = 20.0
"""Longest wait for a task that one request may ask for; a longer wait is cut."""
MOST_ITEMS = 64
"""Most tasks or answers in one message; a worker serves tasks in order."""
OVERHEAD_BYTES = 4096
"""Upper bound for the size of an envelope and one item's own fields."""

_T = TypeVar("_T")
Id = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class Body(msgspec.Struct, frozen=True):
    """Body of the requests ``answer`` and ``leave``, and base of ``Turn`` and ``Renew``."""

    answers: list[tuple[Number, TaskAnswer]]


class Join(msgspec.Struct, frozen=True):
    """Body of ``join``; a repeated join has the same ``idem``."""

    role: Id
    resource: dict[str, Any]
    idem: Id


class Turn(Body, frozen=True):
    """Body of ``turn``: confirms tasks and asks for more."""

    ack: Number
    wait_s: Annotated[float, Meta(ge=0)]


class Renew(Body, frozen=True):
    """Body of ``renew``."""

    progress: Number


BODIES: dict[str, type[Join | Body]] = {
    "join": Join,
    "turn": Turn,
    "answer": Body,
    "renew": Renew,
    "leave": Body,
}


class Request(msgspec.Struct, frozen=True):
    """A request. Before a join, ``run`` is empty, and ``epoch`` and ``inc`` are 0."""

    run: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")]
    epoch: Number
    worker: Id
    inc: Number
    type: Id
    body: Any = None


class Joined(msgspec.Struct, frozen=True):
    """Content of the reply to ``join``."""

    inc: Number
    lease_ms: Number | None = None


class Reply(msgspec.Struct, frozen=True):
    """Content of the reply to any other request."""

    answered: Number
    tasks: list[tuple[Number, TaskMessage]] = []


class Stale(msgspec.Struct, frozen=True):
    """Content of the reply to a request of another run, epoch or incarnation."""

    run: Id
    epoch: Number
    message: str = ""
    replaced: bool = False


def encode_request(request: Request, body: bytes) -> bytes:
    """Return the encoded request, with ``body`` (encoded JSON) in place of its own body.

    The other fields need no escaping: each is a checked id or a number.
    """
    head = (
        f'{{"v":{VERSION},"run":"{request.run}","epoch":{request.epoch},'
        f'"worker":"{request.worker}","inc":{request.inc},"type":"{request.type}","body":'
    )
    return b"%s%s}" % (head.encode(), body)


def decode_request(data: bytes, kind: str, max_bytes: int) -> Request:
    """Return the decoded request, its body converted to the type in ``BODIES``.

    Raises:
        ProtocolError: it is not a valid request of this kind; with the fact ``supported`` if only
            ``v`` is wrong.
    """
    fields = decode_message(data, max_bytes)
    version = fields.get("v") if isinstance(fields, dict) else None
    if type(version) is int and version != VERSION:
        raise ProtocolError(
            f"version {version} of the messages is not supported, only [{VERSION}]; use the same "
            "version of dingsdk for the coordinator and all workers",
            where="$.v",
            supported=[VERSION],
        )
    request = convert({} if version is None else fields, Request)
    if request.type != kind:
        raise ProtocolError(f"a {request.type} request on the {kind} route", where="$.type")
    if kind not in BODIES:
        known = ", ".join(sorted(BODIES))
        raise ProtocolError(f"no requests are called {kind!r}; known are {known}", where="$.type")
    return msgspec.structs.replace(request, body=convert(request.body, BODIES[kind]))


def convert(fields: Any, kind: type[_T]) -> _T:
    """Return decoded JSON as one of the types above.

    Raises:
        ProtocolError: a field is missing, of the wrong type or out of range.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `")
        raise ProtocolError(text, where=where.rstrip("`") or "$") from error


def encode_item(number: int, item: TaskMessage | TaskAnswer, max_bytes: int) -> bytes:
    """Return a numbered task or answer as JSON.

    Raises:
        ProtocolError: it is not plain data, or larger than a message may be.
    """
    fields = {each.name: getattr(item, each.name) for each in dataclasses.fields(item)}
    # The item is sent inside of three containers: encode all, so that the depth is checked.
    encoded = encode_message([[[[number, fields]]]])[3:-3]
    if len(encoded) > max_bytes - OVERHEAD_BYTES:
        raise ProtocolError(
            f"{item.task_id} has {len(encoded)} bytes; a message may have {max_bytes} "
            "(system.transport.max_message_bytes); large data travels as payloads",
            where="$",
            size_bytes=len(encoded),
            max_bytes=max_bytes,
        )
    return encoded


def first_that_fit(items: Iterable[tuple[int, bytes]], max_bytes: int) -> bytes:
    """Return the first items, as many as fit in a message, but at least one, as JSON."""
    chosen: list[bytes] = []
    room = max_bytes - OVERHEAD_BYTES
    for _, encoded in items:
        room -= len(encoded) + 1
        if len(chosen) == MOST_ITEMS or (chosen and room < 0):
            break
        chosen.append(encoded)
    return b",".join(chosen)
