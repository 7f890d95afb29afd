"""The master's side of the protocol, without HTTP: who is joined, and what each is sent."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import ClosedError, ProtocolError, StaleEpochError, WorkerLostError
from dingsdk.worker.comm import LEFT, MasterListener, TaskAnswer, TaskMessage, WorkerInfo
from dingsdk_flask_fs.mailbox import Mailbox
from dingsdk_flask_fs.messages import (
    MAX_WANT,
    Request,
    decode_answers,
    field,
    identifier,
    seconds,
    whole,
)

JOINS_KEPT = 1024
"""Joins that are still recognised when they are sent again."""
BUSY_WAIT_S = 0.05


class Switchboard:
    """Handles one request a call, from any thread; reports to the listener.

    Args:
        run: Id of the run.
        epoch: Number of this master's start in the run; messages of another are refused.
        max_bytes: The largest message.
        max_polls: Requests that may wait for tasks at the same time; the others are answered
            almost at once, so that waiting never takes the threads that answers need.
        lease_s: What workers are told when they join.
    """

    def __init__(
        self, run: str, epoch: int, *, max_bytes: int, max_polls: int, lease_s: float | None = None
    ) -> None:
        self.run, self.epoch = run, epoch
        self._max_bytes = max_bytes
        self._lease = b"" if lease_s is None else b',"lease_ms":%d' % (1000 * lease_s)
        self._polls = threading.Semaphore(max_polls)
        self._lock = threading.Lock()
        self._joining = threading.RLock()  # held while the listener hears who joined or left
        self._mailboxes: dict[str, Mailbox] = {}
        self._joins: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._incs = itertools.count(1)
        self._listener: MasterListener | None = None
        self._is_closed = False
        self._untold: set[tuple[str, int]] = set()
        self._told_all = threading.Condition(self._lock)
        self._handlers: Mapping[str, Callable[[Request], bytes]] = {
            "join": self._join,
            "turn": self._turn,
            "answer": self._answer,
            "renew": self._renew,
            "leave": self._leave,
        }

    def open(self, listener: MasterListener) -> None:
        with self._lock:
            self._listener = listener

    def handle(self, request: Request) -> bytes:
        """Return the body of the answer, as JSON.

        Raises:
            ProtocolError: the body is malformed.
            StaleEpochError: the sender's run, epoch or incarnation is over.
            ClosedError: this master ends.
        """
        if self._is_closed:
            raise self._over(request)
        if request.run != self.run or request.epoch != self.epoch:
            raise self._stale(request, f"this is epoch {self.epoch} of run {self.run}")
        return self._handlers[request.type](request)

    # For the master end --------------------------------------------------------------------------
    def send(self, worker_id: str, inc: int, task: TaskMessage) -> None:
        mailbox = self._current(worker_id, inc)
        if mailbox is None or not mailbox.put(task):
            raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)

    def drop(self, worker_id: str, inc: int | None) -> bool:
        """Forget a worker, as that incarnation or as any; return whether it was joined."""
        with self._lock:
            mailbox = self._mailboxes.get(worker_id)
            if mailbox is None or inc not in (None, mailbox.inc):
                return False
            del self._mailboxes[worker_id]
        mailbox.close()
        return True

    def abandon(self, worker_id: str, inc: int | None, reason: str) -> None:
        """Drop a worker and tell the listener, before it hears of the next one of that id."""
        with self._joining:
            if self.drop(worker_id, inc):
                self._told().worker_left(worker_id, reason)

    def close(self) -> None:
        """End all waits; whoever asks from now on is told that the run is over."""
        with self._lock:
            mailboxes = list(self._mailboxes.values())
            self._mailboxes.clear()
            self._untold |= {(each.worker_id, each.inc) for each in mailboxes}
            self._is_closed = True
        for mailbox in mailboxes:
            mailbox.close()

    def wait_told(self, timeout_s: float) -> bool:
        """Wait until every worker that was joined at the close has been told so."""
        with self._lock:
            return self._told_all.wait_for(lambda: not self._untold, timeout_s)

    # Requests ------------------------------------------------------------------------------------
    def _join(self, request: Request) -> bytes:
        role = identifier(request.body, "role")
        resource = field(request.body, "resource", dict)
        name = request.worker, request.idem
        with self._joining:
            inc = self._joins.get(name)
            if inc is None:
                inc = self._admit(request, role, resource)
                self._joins[name] = inc
                if len(self._joins) > JOINS_KEPT:
                    self._joins.popitem(last=False)
            elif self._current(request.worker, inc) is None:
                raise self._stale(request, "that join is over")
        return b'{"inc":%d%s}' % (inc, self._lease)

    def _admit(self, request: Request, role: str, resource: Mapping[str, Any]) -> int:
        listener = self._told()
        self.abandon(request.worker, None, "replaced by a new incarnation")
        inc = next(self._incs)
        mailbox = Mailbox(request.worker, inc, request.idem, self._max_bytes)
        with self._lock:
            self._mailboxes[request.worker] = mailbox
        listener.worker_joined(WorkerInfo(request.worker, role, resource, inc))
        return inc

    def _turn(self, request: Request) -> bytes:
        body = request.body
        ack, want, wait_s = whole(body, "ack"), whole(body, "want"), seconds(body, "wait_s")
        if not 0 < want <= MAX_WANT:
            raise ProtocolError(f"want must be in [1, {MAX_WANT}]", where="$.body.want")
        mailbox = self._deliver(request)
        may_wait = self._polls.acquire(blocking=False)
        try:
            tasks = mailbox.fetch(
                request.seq, ack, want, wait_s if may_wait else min(wait_s, BUSY_WAIT_S)
            )
        finally:
            if may_wait:
                self._polls.release()
        self._check(request, mailbox)
        return b'{"answered":%d,"tasks":[%s]}' % (mailbox.answered, b",".join(tasks))

    def _answer(self, request: Request) -> bytes:
        return b'{"answered":%d}' % self._deliver(request).answered

    def _renew(self, request: Request) -> bytes:
        progress = whole(request.body, "progress")
        mailbox = self._deliver(request)
        self._told().worker_renewed(request.worker, progress)
        return b'{"answered":%d}' % mailbox.answered

    def _leave(self, request: Request) -> bytes:
        mailbox = self._deliver(request)
        self.abandon(request.worker, request.inc, LEFT)
        return b'{"answered":%d}' % mailbox.answered

    # -------------------------------------------------------------------------------------------
    def _deliver(self, request: Request) -> Mailbox:
        """Report the answers of a request; return its sender's mailbox."""
        answers = decode_answers(request.body)
        mailbox = self._current(request.worker, request.inc)
        if mailbox is None:
            raise self._lost(request)
        listener = self._told()

        def report(answer: TaskAnswer) -> None:
            listener.task_answered(request.worker, answer)

        mailbox.take(answers, report)
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

    def _told(self) -> MasterListener:
        with self._lock:
            if self._listener is None:
                raise ClosedError("this master is not open", what="master")
            return self._listener

    def _over(self, request: Request) -> ClosedError:
        with self._lock:
            self._untold.discard((request.worker, request.inc))
            self._told_all.notify_all()
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
            epoch=self.epoch,
            run=self.run,
            **facts,
        )
