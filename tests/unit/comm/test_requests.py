"""The master's side of the request protocol: errors, mailboxes, joins, numbering and closing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
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
from dingsdk.runtime import PrivateDir
from dingsdk.worker.comm.requests.handler import Mailbox, RequestHandler
from dingsdk.worker.comm.requests.link import answer_of
from dingsdk.worker.comm.requests.messages import (
    OVERHEAD_BYTES,
    Join,
    Request,
    Turn,
    decode_request,
    encode_item,
)
from dingsdk.worker.comm.requests.transport import RequestMasterEnd, RequestTransport
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
def test_error_of_a_sender_is_answered_and_not_logged(
    error: DingError, status: int, told: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_of(error)
    body = json.loads(answer.body)
    assert len(body.pop("request_id")) == 16
    assert (answer.status, body) == (status, {"code": error.code, "message": str(error), **told})
    assert caplog.records == []


@pytest.mark.parametrize("error", [KeyError("secret place"), DataMissingError("secret place")])
def test_internal_error_is_logged_in_full_and_answered_with_its_request_id(
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


def test_mailbox_refuses_skipped_task_and_answer_numbers() -> None:
    box = Mailbox("w0", 1, 1 << 20, threading.Condition())
    answers = [TaskAnswer(f"t{number}", True, {}) for number in range(3)]
    told: list[TaskAnswer] = []
    box.put(TaskMessage("t0", {}))
    with pytest.raises(ProtocolError) as caught:
        box.fetch(ack=2, wait_s=0.0)
    assert caught.value.where == "$.body.ack"
    box.take([(1, answers[0])], told.append)
    with pytest.raises(ProtocolError) as caught:
        box.take([(3, answers[2])], told.append)
    assert caught.value.where == "$.body.answers"
    box.take([(1, answers[0]), (2, answers[1])], told.append)
    assert told == answers[:2]


class NotingCondition(threading.Condition):
    """A condition that does not wait, but records its timeouts."""

    def __init__(self, waited: list[float | None]) -> None:
        super().__init__()
        self.waited = waited

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.waited.append(timeout)
        return predicate()


class Handling(MasterListener):
    """A handler with a listener that records events."""

    def __init__(self, max_polls: int = 1) -> None:
        self.waited: list[float | None] = []
        self.told: list[tuple[str, int | str]] = []
        scheduler: Any = SimpleNamespace(condition=lambda: NotingCondition(self.waited))
        self.handler = RequestHandler(
            self, "r", 1, max_bytes=1 << 20, max_polls=max_polls, scheduler=scheduler
        )

    def ask(self, kind: str, worker: str, inc: int, body: Any) -> Any:
        request = Request("r", 1, worker, inc, kind, body)
        return json.loads(self.handler.handle(request))

    def join(self, worker: str, idem: str) -> int:
        return int(self.ask("join", worker, 0, Join("collector", {}, idem))["inc"])

    def worker_joined(self, info: WorkerInfo) -> None:
        self.told.append((info.worker_id, info.incarnation))

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        raise NotImplementedError

    def worker_left(self, worker_id: str, reason: str) -> None:
        self.told.append((worker_id, reason))

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        self.told.append((worker_id, answer.task_id))


@pytest.mark.parametrize(("max_polls", "waited"), [(1, [3.0, 3.0]), (0, [0.05, 0.05])])
def test_request_over_the_limit_of_waiting_requests_is_answered_soon(
    max_polls: int, waited: list[float]
) -> None:
    site = Handling(max_polls)
    inc = site.join("w0", "a")
    for _ in range(2):
        site.ask("turn", "w0", inc, Turn([], 0, 3.0))
    for wait_s in (0.01, 100.0):
        site.ask("turn", "w0", inc, Turn([], 0, wait_s))
    assert site.waited == [*waited, 0.01, 20.0 if max_polls else 0.05]


def test_repeated_join_gets_the_same_incarnation_while_no_other_follows() -> None:
    site = Handling()
    joins = (("w0", "a"), ("w1", "b"), ("w1", "b"), ("w0", "a"), ("w0", "c"))
    assert [site.join(*each) for each in joins] == [1, 2, 2, 1, 3]
    assert site.told == [
        ("w0", 1),
        ("w1", 2),
        ("w0", "replaced by a new incarnation"),
        ("w0", 3),
    ]


@pytest.mark.parametrize("how", ["put", "close"])
def test_waiting_request_is_woken_by_a_task_or_a_close(how: str) -> None:
    is_waiting, found = threading.Event(), list[bytes]()

    class Telling(threading.Condition):
        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            is_waiting.set()
            return super().wait_for(predicate, timeout)

    box = Mailbox("w0", 1, 1 << 20, Telling())
    asking = threading.Thread(
        target=lambda: found.append(box.fetch(ack=0, wait_s=60.0)), daemon=True
    )
    asking.start()
    assert is_waiting.wait(20.0)
    if how == "put":
        box.put(TaskMessage("t0", {}))
    else:
        box.close()
    asking.join(20.0)
    assert found == [b'[1,{"task_id":"t0","data":{}}]' if how == "put" else b""]


def test_closed_handler_tells_each_worker_and_reports_no_worker_as_left() -> None:
    site = Handling()
    incs = {worker: site.join(worker, worker) for worker in ("w0", "w1")}
    assert site.handler.wait_told(0.0)
    site.handler.close()
    assert not site.handler.wait_told(0.0)
    for worker, inc in incs.items():
        with pytest.raises(ClosedError):
            site.ask("turn", worker, inc, Turn([], 0, 0.0))
    assert site.handler.wait_told(0.0)
    site.handler.abandon("w0", None, "it was cut off")
    assert site.told == [("w0", 1), ("w1", 2)]


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"type": "renew"}, "$.type"), ({"inc": "1"}, "$.inc"), ({"v": 3}, "$.v"), ({"body": 1}, "$")],
)
def test_malformed_request_is_refused_with_the_path_of_the_wrong_field(
    changes: dict[str, Any], where: str
) -> None:
    known = {"v": 2, "run": "r", "epoch": 1, "worker": "w", "inc": 1}
    body = {"answers": [], "progress": 1}
    data = json.dumps({**known, "type": "answer", "body": body, **changes}).encode()
    with pytest.raises(ProtocolError) as caught:
        decode_request(data, "answer", 1 << 20)
    assert caught.value.where == where


def test_item_that_leaves_no_room_for_the_rest_of_its_message_is_refused() -> None:
    task = TaskMessage("t0", {"text": "x" * 100})
    size = len(encode_item(7, task, 1 << 20))
    assert len(encode_item(7, task, size + OVERHEAD_BYTES)) == size
    with pytest.raises(ProtocolError, match=f"t0 has {size} bytes") as caught:
        encode_item(7, task, size + OVERHEAD_BYTES - 1)
    facts = caught.value.facts
    assert (facts["size_bytes"], facts["max_bytes"]) == (size, size + OVERHEAD_BYTES - 1)


def test_task_for_a_worker_that_joins_while_the_master_opens_is_sent() -> None:
    sent: list[Any] = []

    def listen(listener: MasterListener, lease_s: float | None, until_close: ExitStack) -> Any:
        job.start()
        job.join(0.2)  # without an error it is not done: this function has to return first
        return SimpleNamespace(send=lambda *args: sent.append(args)), None, "here"

    end = RequestMasterEnd(listen)
    job = threading.Thread(target=end.send, args=("w0", 1, TaskMessage("t0", {})))
    end.open(Handling())
    job.join(10.0)
    assert sent == [("w0", 1, TaskMessage("t0", {}))]


def test_transport_closes_its_ends_and_then_its_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []

    class Giving(RequestTransport):
        folder: Any = PrivateDir(tmp_path)

        def _end(self, name: str) -> Any:
            return SimpleNamespace(
                close=lambda timeout_s: closed.append((name, timeout_s)),
                abandon_worker=lambda worker_id: closed.append((name, worker_id)),
            )

        def listen(self, *given: Any) -> Any:
            raise NotImplementedError

        def make_slave_end(self, address: str) -> Any:
            return self._end(address)

        def make_data_store(self) -> Any:
            self.until_close.callback(closed.append, "data store")
            return object()

        def make_policy_store(self) -> Any:
            self.until_close.callback(closed.append, "policy store")
            return object()

    made: Any = Giving({}, tmp_path)
    made.until_close.enter_context(made.folder)
    place = "dingsdk.worker.comm.requests.transport.RequestMasterEnd"
    monkeypatch.setattr(place, lambda listen: made._end("master"))
    assert made.data_store() is made.data_store()
    assert made.policy_store() is made.policy_store()
    master, slaves = made.master_end(), [made.slave_end(name) for name in "ab"]
    assert len({id(each) for each in (master, *slaves)}) == 3
    made.abandon_worker("w0")
    made.close()
    ends = [("master", "w0"), ("a", 5.0), ("b", 5.0), ("master", 5.0)]
    assert closed == [*ends, "policy store", "data store"]
    made.close()
    assert len(closed) == 6
