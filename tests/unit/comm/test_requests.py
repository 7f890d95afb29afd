"""What a master answers to requests that fail, and to tasks for workers that are gone."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import (
    ClosedError,
    DataMissingError,
    DingError,
    ProtocolError,
    StaleEpochError,
)
from dingsdk.worker.comm.requests.handler import Mailbox, RequestHandler
from dingsdk.worker.comm.requests.link import answer_of
from dingsdk.worker.comm.requests.messages import Join, Request, Turn, decode_request
from dingsdk.worker.comm.transport import MasterListener, TaskAnswer, TaskMessage, WorkerInfo

LOG = "dingsdk.worker.comm.requests.link"


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ProtocolError("no", where="$.v", supported=[1]), 400, {"supported": [1]}),
        (StaleEpochError("old", run="r", epoch=3), 409, {"run": "r", "epoch": 3}),
        (ClosedError("over"), 410, {}),
    ],
)
def test_mistake_of_a_sender_is_told_and_not_logged(
    error: DingError, status: int, told: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_of(error)
    body = json.loads(answer.body)
    assert len(body.pop("request_id")) == 16
    assert (answer.status, body) == (status, {"code": error.code, "message": str(error), **told})
    assert caplog.records == []


@pytest.mark.parametrize("error", [KeyError("secret place"), DataMissingError("secret place")])
def test_defect_of_a_master_is_logged_in_full_and_told_by_its_number(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_of(error)
    body = json.loads(answer.body)
    number = body.pop("request_id")
    assert (answer.status, body) == (
        500,
        {"code": "InternalError", "message": "see the master's log"},
    )
    (record,) = caplog.records
    assert (record.name, record.levelno) == (LOG, logging.ERROR)
    assert f"request {number} failed" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize(("want", "is_taken"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_worker_may_ask_for_1_to_1024_tasks_at_once(want: int, is_taken: bool) -> None:
    body = {"answers": [], "ack": 0, "want": want, "wait_s": 0.0}
    known = {"v": 1, "run": "r", "epoch": 1, "worker": "w", "inc": 1, "seq": 1, "idem": "1-1"}
    data = json.dumps({**known, "type": "turn", "body": body}).encode()
    if is_taken:
        assert decode_request(data, "turn", 1 << 20).body.want == want
    else:
        with pytest.raises(ProtocolError) as caught:
            decode_request(data, "turn", 1 << 20)
        assert caught.value.where == "$.want"


def test_mailbox_refuses_what_skips_a_task_or_an_answer() -> None:
    box = Mailbox("w0", 1, 1 << 20, threading.Condition())
    answers = [TaskAnswer(f"t{number}", True, {}) for number in range(3)]
    told: list[TaskAnswer] = []
    box.put(TaskMessage("t0", {}))
    with pytest.raises(ProtocolError) as caught:
        box.fetch(seq=1, ack=2, want=1, wait_s=0.0)
    assert caught.value.where == "$.body.ack"
    box.take([(1, answers[0])], told.append)
    with pytest.raises(ProtocolError) as caught:
        box.take([(3, answers[2])], told.append)
    assert caught.value.where == "$.body.answers"
    box.take([(1, answers[0]), (2, answers[1])], told.append)
    assert told == answers[:2]


def test_closed_mailbox_takes_and_gives_no_task() -> None:
    box = Mailbox("w0", 1, 1 << 20, threading.Condition())
    assert box.put(TaskMessage("t0", {}))
    box.close()
    assert not box.put(TaskMessage("t1", {}))
    assert box.fetch(seq=1, ack=0, want=1, wait_s=0.0) == []


class NotingCondition(threading.Condition):
    """Notes how long it was to wait, and waits for nothing."""

    def __init__(self, waited: list[float | None]) -> None:
        super().__init__()
        self.waited = waited

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.waited.append(timeout)
        return predicate()


class Handling(MasterListener):
    """A handler, and what it tells."""

    def __init__(self, max_polls: int = 1) -> None:
        self.waited: list[float | None] = []
        self.told: list[tuple[str, int | str]] = []
        scheduler: Any = SimpleNamespace(condition=lambda: NotingCondition(self.waited))
        self.handler = RequestHandler(
            self, "r", 1, max_bytes=1 << 20, max_polls=max_polls, scheduler=scheduler
        )
        self.seqs = itertools.count(1)

    def ask(self, kind: str, worker: str, inc: int, body: Any, idem: str = "") -> Any:
        seq = 0 if kind == "join" else next(self.seqs)
        request = Request("r", 1, worker, inc, seq, idem or f"{inc}-{seq}", kind, body)
        return json.loads(self.handler.handle(request))

    def join(self, worker: str, idem: str) -> int:
        return int(self.ask("join", worker, 0, Join("collector", {}), idem)["inc"])

    def worker_joined(self, info: WorkerInfo) -> None:
        self.told.append((info.worker_id, info.incarnation))

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        raise NotImplementedError

    def worker_left(self, worker_id: str, reason: str) -> None:
        self.told.append((worker_id, reason))

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("max_polls", "waited"), [(1, [3.0, 3.0]), (0, [0.05, 0.05])])
def test_request_beyond_those_that_may_wait_is_answered_soon(
    max_polls: int, waited: list[float]
) -> None:
    site = Handling(max_polls)
    inc = site.join("w0", "a")
    for _ in range(2):
        site.ask("turn", "w0", inc, Turn([], 0, 1, 3.0))
    site.ask("turn", "w0", inc, Turn([], 0, 1, 0.01))
    assert site.waited == [*waited, 0.01]


def test_join_that_is_sent_again_is_the_same_one_as_long_as_it_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dingsdk.worker.comm.requests.handler.JOINS_KEPT", 2)
    site = Handling()
    joins = (("w0", "a"), ("w1", "b"), ("w1", "b"), ("w2", "c"), ("w1", "b"), ("w2", "c"))
    assert [site.join(*each) for each in joins] == [1, 2, 2, 3, 2, 3]
    assert site.join("w0", "a") == 4
    assert site.told == [
        ("w0", 1),
        ("w1", 2),
        ("w2", 3),
        ("w0", "replaced by a new incarnation"),
        ("w0", 4),
    ]


def test_request_that_was_overtaken_or_is_repeated_gets_no_tasks() -> None:
    box = Mailbox("w0", 1, 1 << 20, threading.Condition())
    for number in range(2):
        box.put(TaskMessage(f"t{number}", {}))
    for seq, ack, count in ((2, 0, 2), (2, 0, 0), (1, 0, 0), (3, 1, 1)):
        assert len(box.fetch(seq, ack, want=9, wait_s=0.0)) == count


def test_request_that_is_overtaken_while_it_waits_gets_no_tasks() -> None:
    later: list[list[bytes]] = []

    class Overtaking(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            if not later:
                later.append([])
                box.put(TaskMessage("t0", {}))
                later.append(box.fetch(seq=2, ack=0, want=1, wait_s=0.0))
            return predicate()

    box = Mailbox("w0", 1, 1 << 20, Overtaking())
    assert box.fetch(seq=1, ack=0, want=1, wait_s=1.0) == []
    assert len(later[1]) == 1
