"""A worker's end with a slow, silent or failing master, connected without a network."""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from dingsdk.errors import ClosedError, DingError, ProtocolError, WorkerLostError
from dingsdk.worker.comm.requests import Answer, LinkError, RequestHandler, RequestSlaveEnd
from dingsdk.worker.comm.requests.link import answer_of
from dingsdk.worker.comm.requests.messages import Request, decode_request, encode_request
from dingsdk.worker.comm.requests.slave_end import _content as content_of
from dingsdk.worker.comm.scheduler import ThreadScheduler
from dingsdk.worker.comm.transport import MasterListener, TaskAnswer, TaskMessage, WorkerInfo

MAX_BYTES = 1 << 20


class Listener(MasterListener):
    """Records the progress and answers that the master receives."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.progress: list[int] = []

    def worker_joined(self, info: WorkerInfo) -> None:
        pass

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        self.progress.append(progress)

    def worker_left(self, worker_id: str, reason: str) -> None:
        pass

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        self.answered.append(answer.task_id)


class Waits(random.Random):
    """Random waits that are always 0; records the upper limits."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        self.most.append(b)
        return 0.0


class SetClock(ThreadScheduler):
    """A scheduler whose clock the test sets."""

    now = 100.0

    def clock(self) -> float:
        return self.now


class Site:
    """A master and a worker's end that sends requests to it through ``post``."""

    def __init__(self, scheduler: ThreadScheduler | None = None, **limits: Any) -> None:
        self.scheduler = scheduler or ThreadScheduler()
        self.asked: list[tuple[str, float]] = []
        """Kinds of requests, and seconds until their deadlines."""
        self.closes = 0
        self.wait_s: list[float] = []
        """How many seconds the master was asked to wait for a task, per turn."""
        self.replies: deque[Answer] = deque()
        """Preset answers, which replace those of the master."""
        self.listener = Listener()
        self.handler = RequestHandler(
            self.listener, "r", 1, max_bytes=MAX_BYTES, max_polls=8, scheduler=self.scheduler
        )
        self.failures: deque[str] = deque()
        """Kinds of the next requests that get no answer, in order; others are served."""
        self.is_silent = False
        self.on_answers = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.waits = Waits()
        self.end: RequestSlaveEnd[str] = RequestSlaveEnd(
            "here",
            lambda: self,
            self.scheduler,
            lambda run: "key",
            max_bytes=MAX_BYTES,
            jitter=self.waits,
            **limits,
        )

    def post(self, target: str, body: bytes, key: str, deadline: float) -> Answer:
        kind = target.rpartition("/")[2]
        self.asked.append((kind, deadline - self.scheduler.clock()))
        if isinstance(self.scheduler, SetClock) and self.is_silent:
            self.scheduler.now += 1.0
        if self.is_silent:
            raise LinkError("silent")
        if self.replies:
            return self.replies.popleft()
        if self.failures and self.failures[0] == kind:
            self.failures.popleft()
            raise LinkError("cut")
        if kind == "answer":
            self.on_answers.set()
            assert self.may_answer.wait(20.0)
        try:
            request = decode_request(body, kind, MAX_BYTES)
            if kind == "turn":
                self.wait_s.append(request.body.wait_s)
            return Answer(200, self.handler.handle(request))
        except DingError as error:
            return answer_of(error)

    def close(self) -> None:
        """Do nothing, as the close of a link."""

    def join(self) -> None:
        self.end.join(WorkerInfo("w0", "collector"), 20.0)

    def task(self, count: int = 1) -> TaskMessage:
        """Send tasks, and return the first one; the others are still queued."""
        for number in range(count):
            self.handler.send("w0", 1, TaskMessage(f"t{number}", {}))
        found = self.end.next_task(20.0)
        assert found is not None
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.may_answer.set()
    made.end.close()
    made.handler.close()


def test_close_during_join_raises_closed_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = site.handler.handle

    def handle(request: Request) -> bytes:
        answer = real(request)
        if request.type == "join":
            site.end.close()  # as another thread could
        return answer

    monkeypatch.setattr(site.handler, "handle", handle)
    with pytest.raises(ClosedError, match="'w0' is closed"):
        site.join()
    assert [each for each in threading.enumerate() if each.name == "w0-answers"] == []


@pytest.mark.parametrize("kind", ["join", "turn", "renew"])
def test_request_without_an_answer_is_retried_with_doubled_waits(site: Site, kind: str) -> None:
    site.failures.extend([kind] * 7)
    site.join()
    assert site.task().task_id == "t0"
    site.end.renew(3)
    assert site.waits.most == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert site.listener.progress == [3]


def test_answer_is_sent_while_the_worker_is_busy(site: Site) -> None:
    site.join()
    task = site.task(2)
    site.end.answer(TaskAnswer(task.task_id, True, {}))
    assert site.on_answers.wait(20.0)


@pytest.mark.parametrize(("status", "error"), [(410, ClosedError), (499, ProtocolError)])
def test_refused_answer_is_raised_by_the_next_check(
    site: Site, status: int, error: type[DingError]
) -> None:
    site.join()
    task = site.task(2)
    site.replies.append(reply(status, message="it is over"))
    site.end.answer(TaskAnswer(task.task_id, True, {}))
    with site.end._condition:
        assert site.end._condition.wait_for(lambda: site.end._gone is not None, 20.0)
    assert not site.replies
    with pytest.raises(error, match="it is over"):
        site.end.check()


class Stopped(Site):
    """A site whose process is stopped for two minutes during some requests."""

    stops = 0

    def post(self, target: str, body: bytes, key: str, deadline: float) -> Answer:
        if self.stops:
            self.stops -= 1
            assert isinstance(self.scheduler, SetClock)
            self.scheduler.now += 120.0
            raise LinkError("cut")
        return super().post(target, body, key, deadline)


def test_time_in_which_the_process_was_stopped_is_no_silence_of_the_master() -> None:
    site = Stopped(SetClock())
    site.join()

    site.stops = 2
    site.end.renew(1)
    site.stops = 1
    assert site.end.next_task(1.0) is None

    site.end.check()
    assert site.listener.progress == [1]
    site.end.close()
    site.handler.close()


@pytest.mark.parametrize(
    ("limits", "join_s", "wait_s", "turn_s", "renew_s"),
    [
        ({}, 7.5, 5.0, 7.0, 7.5),
        ({"lost_after_s": 60.0}, 10.0, 20.0, 22.0, 10.0),
        ({"lost_after_s": 3.0}, 1.5, 1.0, 2.0, 1.5),
    ],
)
def test_request_timeouts_are_shorter_than_the_time_until_the_master_is_lost(
    limits: dict[str, float], join_s: float, wait_s: float, turn_s: float, renew_s: float
) -> None:
    site = Site(SetClock(), **limits)
    site.end.join(WorkerInfo("w0", "collector"), 0.25)
    site.join()
    site.handler.send("w0", 2, TaskMessage("t0", {}))
    assert site.end.next_task(100.0) is not None
    site.handler.send("w0", 2, TaskMessage("t1", {}))
    assert site.end.next_task(0.5) is not None
    site.end.renew(1)
    site.end.close()
    # The first request of a worker returns the epoch of the master.
    assert site.asked == [
        *[("join", 0.25)] * 2,
        *[("join", join_s)] * 2,
        ("turn", turn_s),
        ("turn", turn_s - wait_s + 0.5),
        ("renew", renew_s),
        ("leave", 1.0),
    ]
    assert site.wait_s == [wait_s, 0.5]
    site.handler.close()


def test_join_is_retried_until_its_deadline() -> None:
    site = Site(SetClock())
    site.is_silent = True
    with pytest.raises(WorkerLostError, match=r"master at here within 2\.0 s: silent") as caught:
        site.end.join(WorkerInfo("w0", "collector"), 2.0)
    assert caught.value.facts["worker_id"] == "w0"
    assert caught.value.facts["traceback"] == ""  # a command shows none
    assert site.asked == [("join", 2.0), ("join", 1.0)]
    site.end.close()
    assert [kind for kind, _ in site.asked] == ["join", "join"]  # it never joined
    site.handler.close()


def test_worker_that_cannot_join_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(SetClock())
    site.is_silent = True
    with pytest.raises(WorkerLostError):
        site.end.join(WorkerInfo("w0", "collector"), 7.0)
    (text,) = caplog.messages
    assert text == "w0 cannot join the master at here yet, and tries for 7 s: silent"
    site.end.close()
    site.handler.close()


def test_silence_is_counted_from_the_first_request_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The sender of answers sends no presence requests during the test.
    monkeypatch.setattr("dingsdk.worker.comm.requests.slave_end.PRESENCE_S", 3600.0)
    scheduler = SetClock()
    site = Site(scheduler, lost_after_s=3.0)
    site.join()
    scheduler.now += 1000.0  # without any request
    site.asked.clear()
    site.is_silent = True
    with pytest.raises(WorkerLostError, match=r"here for 3\.0 s: silent") as caught:
        site.end.renew(1)
    assert [kind for kind, _ in site.asked] == ["renew"] * 3
    assert (caught.value.facts["worker_id"], caught.value.facts["silent"]) == ("w0", True)
    site.end.close()
    site.handler.close()


class Deaf(Site):
    """A site whose master answers requests for tasks, and no renewals."""

    def post(self, target: str, body: bytes, key: str, deadline: float) -> Answer:
        if not target.endswith("renew"):
            return super().post(target, body, key, deadline)
        assert self.end.next_task(0.0) is None
        assert isinstance(self.scheduler, SetClock)
        self.scheduler.now += 1.0
        raise LinkError("silent")


def test_renewal_without_answers_ends_although_requests_for_tasks_are_answered() -> None:
    site = Deaf(SetClock(), lost_after_s=3.0)
    site.join()
    with pytest.raises(WorkerLostError, match=r"here for 3\.0 s: silent"):
        site.end.renew(1)
    with pytest.raises(WorkerLostError):
        site.end.next_task(0.0)
    assert site.waits.most == [0.05, 0.1]
    site.end.close()
    site.handler.close()


def reply(status: int, **content: Any) -> Answer:
    return Answer(status, json.dumps(content).encode())


@pytest.mark.parametrize(
    ("stale", "is_replaced", "is_restarted"),
    [
        ({"run": "r", "epoch": 2}, False, True),
        ({"run": "r", "epoch": 1}, False, False),
        ({"run": "other", "epoch": 2}, False, False),
        ({"run": "r", "epoch": 1, "replaced": True}, True, False),
    ],
)
def test_stale_answer_says_whether_the_worker_was_replaced_or_the_master_restarted(
    site: Site, stale: dict[str, Any], is_replaced: bool, is_restarted: bool
) -> None:
    site.join()
    site.replies.append(reply(409, message="it is over", **stale))
    with pytest.raises(WorkerLostError, match="it is over") as caught:
        site.end.renew(1)
    facts = caught.value.facts
    assert (facts["worker_id"], facts["run"], facts["epoch"]) == (
        "w0",
        stale["run"],
        stale["epoch"],
    )
    assert (facts["replaced"], facts["restarted"]) == (is_replaced, is_restarted)
    with pytest.raises(WorkerLostError, match="it is over"):
        site.end.check()


def test_request_is_retried_after_a_5xx_answer_and_not_after_a_4xx_answer(site: Site) -> None:
    site.join()
    site.replies.extend([reply(500, message="no memory"), reply(599)])
    site.end.renew(1)
    assert site.listener.progress == [1]

    site.replies.append(reply(499, message="not so", request_id="0123"))
    with pytest.raises(ProtocolError, match=r"a renew request \(499\): not so") as caught:
        site.end.renew(2)
    facts = caught.value.facts
    assert (facts["where"], facts["status"], facts["request_id"]) == ("renew", 499, "0123")
    site.replies.append(Answer(200, b"[]"))
    with pytest.raises(ProtocolError, match="an answer is an object"):
        site.end.renew(3)
    site.end.renew(4)
    assert site.listener.progress == [1, 4]

    site.replies.append(reply(410, message="the run is over"))
    for call in (lambda: site.end.renew(5), site.end.check):
        with pytest.raises(ClosedError, match="the run is over"):
            call()


def test_worker_of_another_version_gets_an_error_for_its_user() -> None:
    request = Request("", 0, "worker", 0, "join")
    sent = encode_request(request, b"{}").replace(b'"v":2', b'"v":3')
    with pytest.raises(ProtocolError) as refused:
        decode_request(sent, "join", MAX_BYTES)
    with pytest.raises(ProtocolError, match="use the same version of dingsdk") as caught:
        content_of(answer_of(refused.value), request, MAX_BYTES)
    assert caught.value.is_user_mistake
    other = ProtocolError("no", where="$")
    with pytest.raises(ProtocolError) as caught:
        content_of(answer_of(other), request, MAX_BYTES)
    assert not caught.value.is_user_mistake
