"""What travels: the envelope of requests, and tasks and answers inside of it.

An envelope is ``{v, run, epoch, worker, inc, seq, idem, type, body}``. Unknown fields are
ignored, so that a later version may add some; another ``v`` is refused with the versions
that are known.

Tasks and answers are numbered from 1 within an incarnation. Each side keeps what it sent
until the other has confirmed the number, and skips numbers that it has had: a request that is
sent again, because its reply was lost, has the effect of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dingsdk.data import check_id, decode_message, encode_message
from dingsdk.errors import ProtocolError
from dingsdk.worker.comm import TaskAnswer, TaskMessage

VERSION = 1
KINDS = ("join", "turn", "answer", "renew", "leave")
MAX_WAIT_S = 20.0
"""Longest wait for a task that one request may ask for."""
MAX_WANT = 1024
OVERHEAD_BYTES = 4096
"""More than an envelope and one item's own fields ever take."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """A request, checked but for its body. ``epoch`` and ``inc`` are 0 before a join."""

    run: str
    epoch: int
    worker: str
    inc: int
    seq: int
    idem: str
    type: str
    body: Mapping[str, Any]


def encode_request(request: Request, body: bytes) -> bytes:
    """Return the request with ``body``, JSON already, in place of its own.

    Every other field is a checked id or a number.
    """
    head = (
        f'{{"v":{VERSION},"run":"{request.run}","epoch":{request.epoch},'
        f'"worker":"{request.worker}","inc":{request.inc},"seq":{request.seq},'
        f'"idem":"{request.idem}","type":"{request.type}","body":'
    )
    return b"%s%s}" % (head.encode(), body)


def decode_request(data: bytes, kind: str, max_bytes: int) -> Request:
    """Return the request that the bytes encode.

    Raises:
        ProtocolError: they are none of this kind; ``supported`` when only ``v`` is wrong.
    """
    fields = decode_message(data, max_bytes)
    if not isinstance(fields, dict):
        raise ProtocolError("a request is an object", where="$")
    if whole(fields, "v") != VERSION:
        raise ProtocolError(
            f"version {fields['v']} is not spoken here; supported: [{VERSION}]",
            where="$.v",
            supported=[VERSION],
        )
    request = Request(
        run=text(fields, "run") and identifier(fields, "run"),
        epoch=whole(fields, "epoch"),
        worker=identifier(fields, "worker"),
        inc=whole(fields, "inc"),
        seq=whole(fields, "seq"),
        idem=identifier(fields, "idem"),
        type=identifier(fields, "type"),
        body=field(fields, "body", dict),
    )
    if request.type != kind:
        raise ProtocolError(f"a {request.type} request on the {kind} route", where="$.type")
    return request


# Tasks and answers ---------------------------------------------------------------------------


def encode_item(number: int, item: TaskMessage | TaskAnswer, max_bytes: int) -> bytes:
    """Return a numbered task or answer as JSON.

    Raises:
        ProtocolError: it is no plain data, or larger than a message may be.
    """
    if isinstance(item, TaskMessage):
        fields: dict[str, Any] = {"n": number, "task_id": item.task_id, "data": item.data}
    else:
        fields = {
            "n": number,
            "task_id": item.task_id,
            "completed": item.completed,
            "result": item.result,
            "message": item.message,
            "traceback": item.traceback,
        }
    # It travels inside of three containers; encoded so, its depth is checked as a whole.
    encoded = encode_message([[[fields]]])[3:-3]
    if len(encoded) > max_bytes - OVERHEAD_BYTES:
        raise ProtocolError(
            f"{item.task_id} has {len(encoded)} bytes; a message may have {max_bytes} "
            "(system.transport.max_message_bytes); large data travels as payloads",
            where="$",
            size_bytes=len(encoded),
            max_bytes=max_bytes,
        )
    return encoded


def decode_task(fields: Any) -> tuple[int, TaskMessage]:
    """Return the number and the task. Raises ProtocolError."""
    if not isinstance(fields, dict):
        raise ProtocolError("a task is an object", where="$.tasks[]")
    task = TaskMessage(identifier(fields, "task_id"), field(fields, "data", dict))
    return whole(fields, "n"), task


def decode_answers(body: Mapping[str, Any]) -> list[tuple[int, TaskAnswer]]:
    """Return the numbered answers of a body, in the order of their numbers.

    Raises:
        ProtocolError: they are malformed or their numbers have gaps.
    """
    answers: list[tuple[int, TaskAnswer]] = []
    for fields in field(body, "answers", list):
        if not isinstance(fields, dict):
            raise ProtocolError("an answer is an object", where="$.body.answers[]")
        number = whole(fields, "n")
        if answers and number != answers[-1][0] + 1:
            raise ProtocolError("answers are numbered in order", where="$.body.answers[].n")
        answer = TaskAnswer(
            identifier(fields, "task_id"),
            field(fields, "completed", bool),
            field(fields, "result", dict),
            text(fields, "message"),
            text(fields, "traceback"),
        )
        answers.append((number, answer))
    return answers


# Fields ------------------------------------------------------------------------------------------


def field(fields: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """Return ``fields[key]`` if it is of exactly this type. Raises ProtocolError."""
    value = fields.get(key)
    if type(value) is not kind:
        found = "nothing" if key not in fields else type(value).__name__
        raise ProtocolError(f"{key} must be {kind.__name__}, found {found}", where=f"$..{key}")
    return value


def whole(fields: Mapping[str, Any], key: str) -> int:
    value = field(fields, key, int)
    if not 0 <= value < 2**63:
        raise ProtocolError(f"{key} must be in [0, 2**63)", where=f"$..{key}")
    return value


def text(fields: Mapping[str, Any], key: str) -> str:
    return field(fields, key, str)


def seconds(fields: Mapping[str, Any], key: str) -> float:
    """Return a wait in [0, MAX_WAIT_S]; a longer one is cut. Raises ProtocolError."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ProtocolError(f"{key} must be seconds >= 0", where=f"$..{key}")
    return min(float(value), MAX_WAIT_S)


def identifier(fields: Mapping[str, Any], key: str) -> str:
    return check_id(text(fields, key), key)
