"""A worker's end: requests tasks on one connection, and reports on another."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import (
    AuthError,
    ClosedError,
    DingError,
    ProtocolError,
    StaleEpochError,
    WorkerLostError,
)
from dingsdk.runtime import check_id, checked_timeout
from dingsdk.worker.comm.requests.link import Answer, ForeignAnswerError, Link, LinkError
from dingsdk.worker.comm.requests.messages import (
    MAX_WAIT_S,
    Joined,
    Reply,
    Request,
    Stale,
    convert,
    encode_item,
    encode_request,
    first_that_fit,
)
from dingsdk.worker.comm.scheduler import Job, Scheduler
from dingsdk.worker.comm.transport import STOPPED_S, SlaveEnd, TaskAnswer, TaskMessage, WorkerInfo

MARGIN_S = 2.0
"""Longest time that a request for tasks may take in addition to its wait."""
BACKOFF_S = (0.05, 2.0)
"""Limit of the pause before an unreachable master is asked again: the first one, and the largest
one."""
QUIET_S = 3.0
"""Time after which a worker that cannot join says so."""
PRESENCE_S = 1.0
"""How long a worker may be busy before its end sends its answers, and asks whether the master is
still there: the work is useless when the run is over."""

_log = logging.getLogger(__name__)
_Key = TypeVar("_Key")


class RequestSlaveEnd(SlaveEnd, Generic[_Key]):
    """A slave end that sends requests; unjoined until ``join``.

    ``answer`` only queues an answer: it is sent with the next request, usually one for tasks. If
    there is none within ``PRESENCE_S``, a job sends one. Every request repeats all unconfirmed
    answers, and the master skips those that it has received already.

    Args:
        scheduler: Gives the time, and runs the job that asks for a silent master.
        find_key: Returns the key with which connections prove that they know the run's secret,
            given the id of the run, which is empty until the master has told it. Raises LinkError
            while there is no such key.
        request_timeout_s: Longest wait for an immediate answer; at most half of ``lost_after_s``.
        lost_after_s: The master counts as lost if no request was answered for this time. All other
            waits are shorter, so that one lost reply is not enough.
        jitter: Random source for the pauses between repeated requests; None for a new one.
    """

    def __init__(
        self,
        where: str,
        connect: Callable[[], Link[_Key]],
        scheduler: Scheduler,
        find_key: Callable[[str], _Key],
        *,
        max_bytes: int,
        request_timeout_s: float = 10.0,
        lost_after_s: float = 15.0,
        jitter: random.Random | None = None,
    ) -> None:
        self._where = where
        self._find_key = find_key
        self._max_bytes = max_bytes
        self._request_timeout_s = min(request_timeout_s, lost_after_s / 2)
        self._longest_poll_s = min(MAX_WAIT_S, lost_after_s / 3)
        self._margin_s = min(MARGIN_S, lost_after_s / 3)
        self._lost_after_s = lost_after_s
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._asks, self._reports = connect(), connect()
        self._condition = scheduler.condition()
        self._watch: Job | None = None
        self._key: _Key  # from join() on
        # Not the shared generator: programs seed it, and workers must not retry at the same time.
        self._jitter = jitter or random.Random()
        self._is_closed = False
        # State of the incarnation:
        self._worker_id = ""
        self._run, self._epoch, self._inc = "", 0, 0
        self._gone: DingError | None = WorkerLostError("not joined")
        self._tasks: deque[TaskMessage] = deque()
        self._last_task = 0
        self._answers: deque[tuple[int, bytes]] = deque()
        self._last_answer = 0
        self._is_asking = False
        self._heard_at = 0.0
        self._silent_since: float | None = None
        """When the first request without an answer was sent, since the last answer."""

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        """Announce the worker to the master, trying until the deadline.

        Raises:
            AuthError: the master and this process have different secrets.
            WorkerLostError, ClosedError: as in ``SlaveEnd``.
        """
        check_id(info.worker_id, "worker_id")
        timeout_s = checked_timeout(timeout_s)
        began_at = self._clock()
        deadline, has_told = began_at + timeout_s, False
        fields = {"role": info.role, "resource": info.resource}
        idem, run, epoch, tries = secrets.token_hex(16), "", 0, 0
        while True:
            request = Request(run, epoch, info.worker_id, 0, "join")
            body = encode_message({**fields, "idem": idem})
            try:
                self._key = self._find_key(run)  # again, as a new master may have a new one
                limit = min(deadline, self._clock() + self._request_timeout_s)
                joined = convert(self._ask_once(self._reports, request, body, limit), Joined)
                break
            except StaleEpochError as error:
                if error.facts.get("run"):
                    is_news = (run, epoch) != (error.run, error.epoch)
                    run, epoch = error.run, error.epoch
                    # If our join was accepted and then dropped, its id must not be used again.
                    idem = secrets.token_hex(16)
                    if is_news:
                        continue
                why = str(error)
            except ForeignAnswerError as error:
                raise AuthError(f"{self._where}: {error}", reason="answer") from error
            except LinkError as error:
                why = str(error)
            self._pause(tries, deadline)
            tries += 1
            now = self._clock()
            if now >= deadline:
                raise WorkerLostError(
                    f"cannot join the master at {self._where} within {timeout_s:.1f} s: {why}",
                    worker_id=info.worker_id,
                    traceback="",  # ours says nothing about the master
                )
            if not has_told and now - began_at >= QUIET_S:
                _log.warning(
                    "%s cannot join the master at %s yet, and tries for %.0f s: %s",
                    info.worker_id,
                    self._where,
                    timeout_s,
                    why,
                )
                has_told = True
        with self._condition:
            self._worker_id, self._run, self._epoch = info.worker_id, run, epoch
            self._inc = joined.inc
            self.lease_s = None if joined.lease_ms is None else joined.lease_ms / 1000
            self._gone = None
            self._tasks.clear()
            self._answers.clear()
            self._last_task = self._last_answer = 0
            self._silent_since, self._heard_at = None, self._clock()
            if self._is_closed:
                raise self._closed()
            if self._watch is None:
                name = f"{info.worker_id}-watch"
                self._watch = self._scheduler.spawn(self._watch_master, name)

    def close(self, timeout_s: float = 5.0) -> None:
        deadline = self._clock() + timeout_s
        with self._condition:
            if self._is_closed:
                return
            self._is_closed = True
            is_joined = self._gone is None
            self._condition.notify_all()
        self._asks.close()
        if is_joined:
            self._leave(min(deadline, self._clock() + 1.0))
        self._reports.close()
        if self._watch is not None:
            self._watch.join(max(0.1, deadline - self._clock()))

    def next_task(self, timeout_s: float) -> TaskMessage | None:
        deadline = self._clock() + checked_timeout(timeout_s)
        tries = 0
        is_last = False
        while True:
            with self._condition:
                self._check()
                if self._tasks:
                    return self._tasks.popleft()
            if is_last:
                return None
            try:
                self._turn(min(max(0.0, deadline - self._clock()), self._longest_poll_s))
            except LinkError as error:
                self._note_silence(error)
                self._pause(tries, deadline)
                tries += 1
            is_last = self._clock() >= deadline

    def answer(self, answer: TaskAnswer) -> None:
        """Queue an answer for sending.

        Raises:
            ProtocolError: it is not plain data, or too large.
            WorkerLostError, ClosedError: this incarnation is already known to be over.
        """
        with self._condition:
            self._check()
            number = self._last_answer + 1
            self._answers.append((number, encode_item(number, answer, self._max_bytes)))
            self._last_answer = number

    def renew(self, progress: int) -> None:
        self._report("renew", f'"progress":{int(progress)},', self._inc)

    def check(self) -> None:
        with self._condition:
            self._check()

    def _turn(self, wait_s: float) -> None:
        """Confirm tasks, report answers and ask for tasks in one request."""
        with self._condition:
            self._check()
            inc, ack = self._inc, self._last_task
            answers = self._unconfirmed()
        body = b'{"answers":[%s],"ack":%d,"wait_s":%a}'
        body %= answers, ack, round(wait_s, 3)  # the canonical form: 1.0, not 1.000
        deadline = self._clock() + wait_s + self._margin_s
        self._is_asking = True
        try:
            reply = self._ask(self._asks, "turn", body, inc, deadline)
        finally:
            self._is_asking = False
        with self._condition:
            if self._inc != inc:
                return
            self._confirm(reply)
            for number, task in reply.tasks:
                if number > self._last_task:
                    self._last_task = number
                    self._tasks.append(task)

    def _report(self, kind: str, fields: str, inc: int) -> None:
        """Send all unconfirmed answers, trying until the master counts as lost."""
        tries, started = 0, self._clock()
        while True:
            with self._condition:
                if self._inc != inc:
                    return
                self._check()
                answers = self._unconfirmed()
            body = b'{%s"answers":[%s]}' % (fields.encode(), answers)
            try:
                limit = self._clock() + self._request_timeout_s
                reply = self._ask(self._reports, kind, body, inc, limit)
            except LinkError as error:
                if self._was_stopped(limit):
                    started = self._clock()
                self._note_silence(error, started)
                self._pause(tries, started + self._lost_after_s)
                tries += 1
                continue
            with self._condition:
                if self._inc == inc:
                    self._confirm(reply)
            return

    def _watch_master(self) -> None:
        """Send a request whenever the master has not been heard for a while, until the close."""
        while True:
            with self._condition:
                if self._condition.wait_for(lambda: self._is_closed, self._look_in_s()):
                    return
                if self._look_in_s() > 0:
                    continue
                inc = self._inc
            try:
                self._report("answer", "", inc)
            except DingError as error:
                self._note(error, inc)

    def _leave(self, deadline: float) -> None:
        with self._condition:
            body = b'{"answers":[%s]}' % self._unconfirmed()
            request = self._request("leave", self._inc)
        try:
            self._ask_once(self._reports, request, body, deadline)
        except (DingError, LinkError):
            return  # it is over either way: the lease ends by itself

    def _ask(self, link: Link[_Key], kind: str, body: bytes, inc: int, deadline: float) -> Reply:
        started = self._clock()
        with self._condition:
            request = self._request(kind, inc)
        try:
            reply = convert(self._ask_once(link, request, body, deadline), Reply)
        except LinkError:
            if self._was_stopped(deadline):
                self._silent_since = self._clock()
            elif self._silent_since is None:
                self._silent_since = started
            raise
        except (WorkerLostError, ClosedError) as error:
            self._note(error, inc)
            raise
        self._silent_since, self._heard_at = None, self._clock()
        return reply

    def _ask_once(
        self, link: Link[_Key], request: Request, body: bytes, deadline: float
    ) -> dict[str, Any]:
        if self._is_closed and request.type != "leave":
            raise self._closed()
        try:
            content = encode_request(request, body)
            answer = link.post(f"/v1/{request.type}", content, self._key, deadline)
        except LinkError:
            if self._is_closed and request.type != "leave":
                raise self._closed() from None
            raise
        return _content(answer, request, self._max_bytes)

    def _request(self, kind: str, inc: int) -> Request:
        return Request(self._run, self._epoch, self._worker_id, inc, kind)

    def _look_in_s(self) -> float:
        """Return the seconds until the next check whether the master has answered lately."""
        if self._is_asking or self._gone is not None:
            return PRESENCE_S
        return max(0.0, self._heard_at + PRESENCE_S - self._clock())

    def _unconfirmed(self) -> bytes:
        """Return the unconfirmed answers, as many as fit in one message."""
        return first_that_fit(self._answers, self._max_bytes)

    def _confirm(self, reply: Reply) -> None:
        while self._answers and self._answers[0][0] <= reply.answered:
            self._answers.popleft()

    def _check(self) -> None:
        if self._is_closed:
            raise self._closed()
        if self._gone is not None:
            raise self._gone

    def _note(self, error: DingError, inc: int) -> None:
        """Record that the incarnation is over."""
        with self._condition:
            if self._inc == inc and self._gone is None:
                self._gone = error
                self._condition.notify_all()

    def _was_stopped(self, deadline: float) -> bool:
        """Whether this process was stopped during a request, and maybe the master with it."""
        return self._clock() - deadline > STOPPED_S

    def _note_silence(self, error: LinkError, since: float | None = None) -> None:
        """Raise WorkerLostError if no request was answered for ``lost_after_s``.

        ``since`` is when the caller began to try; the longer of the two times counts.
        """
        now = self._clock()
        silent_s = now - min(self._silent_since or now, since or now)
        if silent_s >= self._lost_after_s:
            lost = WorkerLostError(
                f"no sign of the master at {self._where} for {silent_s:.1f} s: {error}",
                worker_id=self._worker_id,
                silent=True,
            )
            self._note(lost, self._inc)
            raise lost from error

    def _pause(self, tries: int, deadline: float) -> None:
        """Wait a random time that grows with the number of tries; a close ends the wait."""
        base, most = BACKOFF_S
        wait_s = self._jitter.uniform(0, min(most, base * 2 ** min(tries, 16)))
        with self._condition:
            self._condition.wait_for(
                lambda: self._is_closed, max(0.0, min(wait_s, deadline - self._clock()))
            )
            if self._is_closed:
                raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError(f"the connection of {self._worker_id!r} is closed", what="slave end")


def _content(answer: Answer, request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the content of the answer to a request.

    Raises:
        StaleEpochError, ClosedError: the sender's incarnation, or the run, is over.
        LinkError: the master failed to serve it; the same request may be sent again.
        ProtocolError: the request was refused, or the answer is malformed.
    """
    content = decode_message(answer.body, max_bytes)
    if not isinstance(content, dict):
        raise ProtocolError("an answer is an object", where="$")
    if answer.status == 200:
        return content
    message = str(content.get("message", ""))[:1000]
    if answer.status == 409:
        stale = convert(content, Stale)
        is_later = stale.run == request.run and stale.epoch > request.epoch > 0
        facts: dict[str, Any] = {"run": stale.run, "epoch": stale.epoch}
        facts |= {"replaced": stale.replaced, "restarted": is_later}
        raise StaleEpochError(message, worker_id=request.worker, **facts)
    if answer.status == 410:
        raise ClosedError(message, what="master")
    if answer.status >= 500:
        raise LinkError(f"the master failed to serve a {request.type} request: {message}")
    error = ProtocolError(
        f"the master refused a {request.type} request ({answer.status}): {message}",
        where=request.type,
        status=answer.status,
        request_id=content.get("request_id"),
    )
    error.is_user_mistake = "supported" in content  # another version of dingsdk
    raise error
