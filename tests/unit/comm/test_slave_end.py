"""What a worker's end does where its master is slow or silent; between them is no network."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from dingsdk.errors import DingError, WorkerLostError
from dingsdk.worker.comm.requests import Answer, LinkError, RequestHandler, RequestSlaveEnd
from dingsdk.worker.comm.requests.link import answer_of
from dingsdk.worker.comm.requests.messages import decode_request
from dingsdk.worker.comm.scheduler import ThreadScheduler
from dingsdk.worker.comm.transport import MasterListener, TaskAnswer, TaskMessage, WorkerInfo

MAX_BYTES = 1 << 20


class Listener(MasterListener):
    """Keeps what a master hears."""

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
    """Chooses to wait for nothing, and keeps the choices that it had."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        self.most.append(b)
        return 0.0


class Site:
    """A master, and a worker's end that talks to it through ``post``."""

    def __init__(self, **limits: Any) -> None:
        self.scheduler = ThreadScheduler()
        self.listener = Listener()
        self.handler = RequestHandler(
            self.listener, "r", 1, max_bytes=MAX_BYTES, max_polls=8, scheduler=self.scheduler
        )
        self.failures: deque[str] = deque()
        """Kinds of the requests that get no answer, in order; the others are served."""
        self.is_silent = False
        self.on_answers = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.waits = Waits()
        self.end: RequestSlaveEnd[str] = RequestSlaveEnd(
            "here",
            lambda: self,
            self.scheduler,
            lambda: "key",
            max_bytes=MAX_BYTES,
            jitter=self.waits,
            **limits,
        )

    def post(self, target: str, body: bytes, key: str, deadline: float) -> Answer:
        kind = target.rpartition("/")[2]
        if self.is_silent:
            raise LinkError("silent")
        if self.failures and self.failures[0] == kind:
            self.failures.popleft()
            raise LinkError("cut")
        if kind == "answer":
            self.on_answers.set()
            assert self.may_answer.wait(20.0)
        try:
            return Answer(200, self.handler.handle(decode_request(body, kind, MAX_BYTES)))
        except DingError as error:
            return answer_of(error)

    def close(self) -> None:
        """Of a link; there is nothing to close."""

    def join(self) -> None:
        self.end.join(WorkerInfo("w0", "collector"), 20.0)

    def task(self, count: int = 1) -> TaskMessage:
        """Send tasks, and return the first; the worker is busy with the others after it."""
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


@pytest.mark.parametrize("kind", ["join", "turn", "renew"])
def test_request_without_an_answer_is_sent_again_after_waits_that_double(
    site: Site, kind: str
) -> None:
    site.failures.extend([kind] * 7)
    site.join()
    assert site.task().task_id == "t0"
    site.end.renew(3)
    assert site.waits.most == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert site.listener.progress == [3]


def test_answer_leaves_by_itself_while_the_worker_is_busy(site: Site) -> None:
    site.join()
    task = site.task(2)
    site.end.answer(TaskAnswer(task.task_id, True, {}))
    assert site.on_answers.wait(20.0)


def test_close_waits_for_the_answers_that_are_on_their_way(site: Site) -> None:
    site.join()
    task = site.task(2)
    site.may_answer.clear()
    site.end.answer(TaskAnswer(task.task_id, True, {}))
    assert site.on_answers.wait(20.0)
    threading.Timer(0.3, site.may_answer.set).start()
    site.end.close()
    assert [each for each in threading.enumerate() if each.name == "w0-answers"] == []
    assert site.listener.answered == [task.task_id]


def test_master_that_is_silent_is_lost_and_all_later_calls_say_so() -> None:
    site = Site(lost_after_s=0.2)
    site.join()
    site.is_silent = True
    with pytest.raises(WorkerLostError, match="no sign of the master at here for 0"):
        site.end.renew(1)
    with pytest.raises(WorkerLostError):
        site.end.check()
    assert site.listener.progress == []
    site.end.close()
    site.handler.close()
