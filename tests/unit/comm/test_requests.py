"""What a master answers to requests that fail, and to tasks for workers that are gone."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from dingsdk.errors import (
    ClosedError,
    DataMissingError,
    DingError,
    ProtocolError,
    StaleEpochError,
)
from dingsdk.worker.comm.requests.handler import Mailbox
from dingsdk.worker.comm.requests.link import answer_of
from dingsdk.worker.comm.requests.messages import decode_request
from dingsdk.worker.comm.transport import TaskAnswer, TaskMessage

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


def test_closed_mailbox_takes_no_task() -> None:
    box = Mailbox("w0", 1, 1 << 20, threading.Condition())
    assert box.put(TaskMessage("t0", {}))
    box.close()
    assert not box.put(TaskMessage("t1", {}))
