"""The two ends of a connection: both call the hub, which has the mailboxes between them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ClosedError, ProtocolError, WorkerLostError
from dingsdk.worker.comm import MasterListener, TaskAnswer, TaskMessage, WorkerInfo
from dingsdk.worker.comm.requests import (
    OVERHEAD_BYTES,
    AbandoningMasterEnd,
    Answer,
    Link,
    LinkError,
)
from dingsdk_ray.cluster import HubGoneError, HubLink
from dingsdk_ray.hub import MAX_MESSAGE_BYTES, Op

_log = logging.getLogger(__name__)

POLL_S = 5.0
TELL_S = 2.0
_RETRY_S = 0.2
_WAITING = ("join", "turn")


class SlaveLink(Link[bool]):
    """A worker's connection. Requests are not signed: Ray's tokens say who may call the hub."""

    def __init__(self, link: HubLink) -> None:
        self._link = link
        self._is_closed = False

    def post(self, target: str, body: bytes, key: bool, deadline: float) -> Answer:
        """Send a request, return its answer.

        Raises:
            LinkError: no answer before the deadline, or this connection closed.
        """
        if self._is_closed:
            raise LinkError("this connection is closed")
        kind = target.rpartition("/")[2]
        timeout_s = max(0.0, deadline - time.monotonic())
        try:
            answer = self._link.call(
                "request", kind, body, timeout_s=timeout_s, waits=kind in _WAITING, owner=self
            )
        except (HubGoneError, ClosedError) as error:
            raise LinkError(str(error)) from error
        return Answer(*answer)

    def close(self) -> None:
        """End the request that is under way, and every later one, with LinkError."""
        self._is_closed = True
        self._link.cancel(self)


class RayMasterEnd(AbandoningMasterEnd):
    """Serves while open, through the hub.

    Args:
        link: To the hub.
        address: Returns what workers dial.
        timeout_s: How long the hub may take to answer.
    """

    def __init__(self, link: HubLink, address: Callable[[], str], timeout_s: float) -> None:
        self._link = link
        self._address = address
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._listener: MasterListener | None = None
        self._ops: deque[Op] = deque()
        self._joined: dict[str, int] = {}
        self._base = self._highest = 0
        self._epoch = 0
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def open(self, listener: MasterListener) -> str:
        """Serve workers from now on; return ``host:port/namespace``.

        Raises:
            ClosedError: it was opened before.
            WorkerLostError: the hub does not start.
        """
        with self._condition:
            if self._is_closed or self._listener is not None:
                raise ClosedError("a master end opens once", what="master end")
            self._listener = listener
        try:
            self._epoch = self._link.call("open", self.lease_s, timeout_s=6 * self._timeout_s)
        except HubGoneError as error:
            raise WorkerLostError(f"the hub of the run: {error}", worker_id="hub") from error
        for work in (self._deliver, self._send):
            thread = threading.Thread(target=work, name=f"ray-master{work.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self._address()

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        data = encode_message(task.data)
        if len(data) > MAX_MESSAGE_BYTES - 2 * OVERHEAD_BYTES:
            raise ProtocolError(
                f"{task.task_id} has {len(data)} bytes; a message may have {MAX_MESSAGE_BYTES}; "
                "large data travels as payloads",
                where="$",
                size_bytes=len(data),
                max_bytes=MAX_MESSAGE_BYTES,
            )
        with self._condition:
            if self._is_closed:
                raise ClosedError("the master end is closed", what="master end")
            if self._joined.get(worker_id) != incarnation:
                raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)
            self._ops.append(("send", worker_id, incarnation - self._base, task.task_id, data))
            self._condition.notify_all()

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        with self._condition:
            if self._joined.get(worker_id) == incarnation:
                del self._joined[worker_id]
                self._ops.append(("drop", worker_id, incarnation - self._base))
                self._condition.notify_all()

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off as if its host had died; it may join again."""
        self._link.call("abandon", worker_id, timeout_s=self._timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        deadline = time.monotonic() + timeout_s
        with self._condition:
            if self._is_closed:
                return
            self._is_closed = True
            self._condition.notify_all()
        if self._epoch:
            tell_s = min(TELL_S, timeout_s / 2)
            try:
                self._link.call(
                    "close_master", self._epoch, tell_s, timeout_s=timeout_s * 0.8, waits=True
                )
            except (HubGoneError, ClosedError) as error:
                _log.warning("workers were not told that the run is over: %s", error)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.1, deadline - time.monotonic()))

    def _send(self) -> None:
        """Send what is queued, in order, until the close."""
        number = 0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: bool(self._ops) or self._is_closed)
                if self._is_closed:
                    return
                epoch, ops = self._epoch, list(self._ops)
                self._ops.clear()
            number += 1
            while not self._is_closed and self._epoch == epoch:
                try:
                    self._link.call("apply", epoch, number, ops, timeout_s=self._timeout_s)
                    break  # else the events say what has become of the workers
                except HubGoneError as error:
                    self._wait_after(error)
                except ClosedError:
                    return

    def _deliver(self) -> None:
        """Report what happens, until the close."""
        confirmed = 0
        while not self._is_closed:
            try:
                events = self._link.call(
                    "events",
                    self._epoch,
                    confirmed,
                    POLL_S,
                    timeout_s=POLL_S + self._timeout_s,
                    waits=True,
                )
                if events is None and not self._is_closed:
                    self._reopen()
                    confirmed = 0
            except HubGoneError as error:
                self._wait_after(error)
                continue
            except ClosedError:
                return
            for number, event in events or ():
                confirmed = number
                self._report(*event)

    def _reopen(self) -> None:
        """Open again: the hub has died, and another one is there, which knows nobody."""
        _log.warning("the hub of the run was restarted: payloads that were not read are lost")
        epoch = self._link.call("open", self.lease_s, timeout_s=self._timeout_s)
        with self._condition:
            lost, self._joined = list(self._joined), {}
            self._ops.clear()
            self._base, self._epoch = self._highest, epoch
        for worker_id in lost:
            self._heard().worker_left(worker_id, "the hub was restarted")

    def _report(self, kind: str, worker_id: str, *facts: Any) -> None:
        listener = self._heard()
        with self._condition:
            if self._is_closed:
                return
            if kind == "joined":
                incarnation = self._base + facts[0]
                self._highest = max(self._highest, incarnation)
                self._joined[worker_id] = incarnation
            elif worker_id not in self._joined:
                return  # it was dropped
            elif kind == "left":
                del self._joined[worker_id]
        if kind == "joined":
            resource = decode_message(facts[2], MAX_MESSAGE_BYTES)
            listener.worker_joined(WorkerInfo(worker_id, facts[1], resource, incarnation))
        elif kind == "renewed":
            listener.worker_renewed(worker_id, facts[0])
        elif kind == "left":
            listener.worker_left(worker_id, facts[0])
        else:
            task_id, completed, result, message, traceback = facts
            content = decode_message(result, MAX_MESSAGE_BYTES)
            answer = TaskAnswer(task_id, completed, content, message, traceback)
            listener.task_answered(worker_id, answer)

    def _heard(self) -> MasterListener:
        assert self._listener is not None  # set before the threads start
        return self._listener

    def _wait_after(self, error: HubGoneError) -> None:
        _log.debug("the hub: %s", error)
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed, _RETRY_S)
