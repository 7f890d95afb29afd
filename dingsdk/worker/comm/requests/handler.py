"""The master's side of the protocol, without connections: joined workers and their mailboxes."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dingsdk.errors import ClosedError, ProtocolError, StaleEpochError, WorkerLostError
from dingsdk.worker.comm.requests.link import Answer, answer_of
from dingsdk.worker.comm.requests.messages import (
    MAX_WAIT_S,
    Body,
    Renew,
    Request,
    Turn,
    decode_request,
    encode_item,
    first_that_fit,
)
from dingsdk.worker.comm.scheduler import Condition, Scheduler
from dingsdk.worker.comm.transport import LEFT, MasterListener, TaskAnswer, TaskMessage, WorkerInfo

BUSY_WAIT_S = 0.05
"""Longest wait of a request for tasks if ``max_polls`` requests are waiting already."""


class Mailbox:
    """The master's state of one incarnation of a worker: its queued tasks and received answers.

    Thread safe. After ``close``, every use reports that the worker is gone.

    Args:
        join_id: ``idem`` of the worker's join, by which a repeat of it is recognised.
    """

    def __init__(
        self, worker_id: str, inc: int, max_bytes: int, condition: Condition, join_id: str = ""
    ) -> None:
        self.worker_id = worker_id
        self.inc = inc
        self.join_id = join_id
        self._max_bytes = max_bytes
        self._condition = condition
        self._tasks: deque[tuple[int, bytes]] = deque()
        self._sent = 0
        self.is_closed = False
        # Held while answers are reported, so that answers of two requests keep their order.
        self._inbound = threading.RLock()
        self.answered = 0

    def put(self, task: TaskMessage) -> bool:
        """Queue a task; return False if the worker is gone. Raises ProtocolError."""
        with self._condition:
            if self.is_closed:
                return False
            encoded = encode_item(self._sent + 1, task, self._max_bytes)
            self._sent += 1
            self._tasks.append((self._sent, encoded))
            self._condition.notify_all()
        return True

    def fetch(self, ack: int, wait_s: float) -> bytes:
        """Remove the tasks up to ``ack``; wait for the next tasks and return them as JSON."""
        with self._condition:
            if ack > self._sent:
                raise ProtocolError(f"task {ack} was never sent", where="$.body.ack")
            while self._tasks and self._tasks[0][0] <= ack:
                self._tasks.popleft()
            self._condition.wait_for(lambda: bool(self._tasks) or self.is_closed, wait_s)
            return first_that_fit(self._tasks, self._max_bytes)

    def take(
        self, answers: list[tuple[int, TaskAnswer]], report: Callable[[TaskAnswer], None]
    ) -> None:
        """Report new answers in order. Raises ProtocolError if their numbers have a gap."""
        with self._inbound:
            for number, answer in answers:
                if number > self.answered + 1:
                    text = f"answer {number} came after {self.answered}"
                    raise ProtocolError(text, where="$.body.answers")
                if number > self.answered and not self.is_closed:
                    self.answered = number
                    report(answer)

    def close(self) -> None:
        """Discard the tasks; waiting calls return."""
        with self._condition:
            self.is_closed = True
            self._tasks.clear()
            self._condition.notify_all()


class RequestHandler:
    """Handles one request per call, from any thread; reports to the listener.

    Args:
        epoch: Number of this master's start in the run; messages of other epochs are refused.
        max_bytes: Size of the largest message.
        max_polls: Requests that may wait for tasks at the same time; further requests are answered
            almost at once, so that waiting requests never use the threads that answers need.
        lease_s: Length of the lease, sent to workers when they join.
    """

    def __init__(
        self,
        listener: MasterListener,
        run: str,
        epoch: int,
        *,
        max_bytes: int,
        max_polls: int,
        lease_s: float | None = None,
        scheduler: Scheduler,
    ) -> None:
        self._listener = listener
        self._scheduler = scheduler
        self._run, self._epoch = run, epoch
        self._max_bytes = max_bytes
        self._lease = b"" if lease_s is None else b',"lease_ms":%d' % (1000 * lease_s)
        self._polls = threading.Semaphore(max_polls)
        self._lock = threading.Lock()
        self._joining = threading.RLock()  # held while joins and leaves are reported
        self._mailboxes: dict[str, Mailbox] = {}
        self._incs = itertools.count(1)
        self._is_closed = False
        self._untold: set[tuple[str, int]] = set()
        self._all_told = threading.Condition(self._lock)
        self._handlers: Mapping[str, Callable[[Request], bytes]] = {
            "join": self._join,
            "turn": self._turn,
            "answer": self._answer,
            "renew": self._renew,
            "leave": self._leave,
        }

    def answer(self, kind: str, body: bytes) -> Answer:
        """Return the answer to a request of a kind, also to one that is not valid."""
        try:
            return Answer(200, self.handle(decode_request(body, kind, self._max_bytes)))
        except Exception as error:
            return answer_of(error)

    def handle(self, request: Request) -> bytes:
        """Return the body of the answer, as JSON.

        Raises:
            ProtocolError: the body is malformed.
            StaleEpochError: the sender's run, epoch or incarnation is over.
            ClosedError: this master has closed.
        """
        if self._is_closed:
            raise self._over(request)
        if request.run != self._run or request.epoch != self._epoch:
            raise self._stale(request, f"this is epoch {self._epoch} of run {self._run}")
        return self._handlers[request.type](request)

    def send(self, worker_id: str, inc: int, task: TaskMessage) -> None:
        """Put a task into a worker's mailbox.

        Raises:
            WorkerLostError: that incarnation of the worker is not joined.
        """
        mailbox = self._current(worker_id, inc)
        if mailbox is None or not mailbox.put(task):
            raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)

    def drop(self, worker_id: str, inc: int | None) -> bool:
        """Remove a worker (any incarnation if ``inc`` is None); return whether it was joined."""
        with self._lock:
            mailbox = self._mailboxes.get(worker_id)
            if mailbox is None or inc not in (None, mailbox.inc):
                return False
            del self._mailboxes[worker_id]
        mailbox.close()
        return True

    def abandon(self, worker_id: str, inc: int | None, reason: str) -> None:
        """Drop a worker and report it to the listener, before a next join of the same id."""
        with self._joining:
            if self.drop(worker_id, inc):
                self._listener.worker_left(worker_id, reason)

    def close(self) -> None:
        """End all waits; later requests are answered with ClosedError."""
        with self._lock:
            mailboxes = list(self._mailboxes.values())
            self._mailboxes.clear()
            self._untold |= {(each.worker_id, each.inc) for each in mailboxes}
            self._is_closed = True
        for mailbox in mailboxes:
            mailbox.close()

    def wait_told(self, timeout_s: float) -> bool:
        """Wait until every worker that was joined at the close has received ClosedError."""
        with self._lock:
            return self._all_told.wait_for(lambda: not self._untold, timeout_s)

    def _join(self, request: Request) -> bytes:
        name, body = request.worker, request.body
        with self._joining:
            mailbox = self._mailboxes.get(name)
            if mailbox is None or mailbox.join_id != body.idem:
                self.abandon(name, None, "replaced by a new incarnation")
                condition, inc = self._scheduler.condition(), next(self._incs)
                mailbox = Mailbox(name, inc, self._max_bytes, condition, body.idem)
                with self._lock:
                    self._mailboxes[name] = mailbox
                self._listener.worker_joined(WorkerInfo(name, body.role, body.resource, inc))
        return b'{"inc":%d%s}' % (mailbox.inc, self._lease)

    def _turn(self, request: Request) -> bytes:
        body: Turn = request.body
        wait_s = min(body.wait_s, MAX_WAIT_S)
        mailbox = self._deliver(request)
        may_wait = self._polls.acquire(blocking=False)
        try:
            tasks = mailbox.fetch(body.ack, wait_s if may_wait else min(wait_s, BUSY_WAIT_S))
        finally:
            if may_wait:
                self._polls.release()
        self._check(request, mailbox)
        return b'{"answered":%d,"tasks":[%s]}' % (mailbox.answered, tasks)

    def _answer(self, request: Request) -> bytes:
        return b'{"answered":%d}' % self._deliver(request).answered

    def _renew(self, request: Request) -> bytes:
        body: Renew = request.body
        mailbox = self._deliver(request)
        self._listener.worker_renewed(request.worker, body.progress)
        return b'{"answered":%d}' % mailbox.answered

    def _leave(self, request: Request) -> bytes:
        mailbox = self._deliver(request)
        self.abandon(request.worker, request.inc, LEFT)
        return b'{"answered":%d}' % mailbox.answered

    def _deliver(self, request: Request) -> Mailbox:
        """Report the answers in a request; return the sender's mailbox."""
        body: Body = request.body
        mailbox = self._current(request.worker, request.inc)
        if mailbox is None:
            raise self._lost(request)
        mailbox.take(body.answers, partial(self._listener.task_answered, request.worker))
        self._check(request, mailbox)
        return mailbox

    def _check(self, request: Request, mailbox: Mailbox) -> None:
        if self._is_closed:
            raise self._over(request)
        if mailbox.is_closed:
            raise self._lost(request)

    def _current(self, worker_id: str, inc: int) -> Mailbox | None:
        with self._lock:
            mailbox = self._mailboxes.get(worker_id)
        return mailbox if mailbox is not None and mailbox.inc == inc else None

    def _over(self, request: Request) -> ClosedError:
        with self._lock:
            self._untold.discard((request.worker, request.inc))
            self._all_told.notify_all()
        return ClosedError("the run is over", what="master")

    def _lost(self, request: Request) -> StaleEpochError:
        with self._lock:
            holder = self._mailboxes.get(request.worker)
        if holder is not None and holder.inc > request.inc:
            return self._stale(request, "another worker has joined under its id", replaced=True)
        return self._stale(request, "the master gave this incarnation up")

    def _stale(self, request: Request, why: str, **facts: Any) -> StaleEpochError:
        return StaleEpochError(
            f"worker {request.worker!r}: {why}",
            worker_id=request.worker,
            epoch=self._epoch,
            run=self._run,
            **facts,
        )
