"""The hub of a run: its mailboxes, payloads and policies, in an actor.

The actor is a process of its own, on the node of the coordinator, so that the end of any other
process loses nothing that it was given. ``Hub`` knows nothing of Ray: ``store`` moves large frames
to the object store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import DingError, WorkerLostError
from dingsdk.worker.comm import MasterListener, TaskAnswer, TaskMessage, ThreadScheduler, WorkerInfo
from dingsdk.worker.comm.requests import (
    Answer,
    RequestHandler,
    answer_of,
    decode_request,
    error_answer,
)

MAX_MESSAGE_BYTES = 4 << 20
WAITING_CALLS = 128
"""Calls that may wait at the same time; each takes a thread of the hub."""
INLINE_BYTES = 64 << 10
"""Frames up to this size travel in calls and stay in the hub's memory; Ray does so with results up
to 100 KB. Larger ones are in the object store."""
CONFIRM_S = 5.0
"""How long a join waits until the coordinator knows of it."""

Event = tuple[Any, ...]
"""("joined", worker_id, inc, role, resource), ("renewed", worker_id, progress),
("left", worker_id, reason) or ("answered", worker_id, task_id, completed, result, message,
traceback); resource and result are encoded messages."""
Op = tuple[Any, ...]
"""("send", worker_id, inc, task_id, data) or ("drop", worker_id, inc); data is an encoded
message."""


class _Events(MasterListener):
    """What a master has not confirmed yet, numbered from 1."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._events: deque[tuple[int, Event]] = deque()
        self._count = self._confirmed = 0
        self.is_closed = False

    def worker_joined(self, info: WorkerInfo) -> None:
        resource = encode_message(info.resource)
        self._add("joined", info.worker_id, info.incarnation, info.role, resource)

    def worker_renewed(self, worker_id: str, progress: int) -> None:
        self._add("renewed", worker_id, progress)

    def worker_left(self, worker_id: str, reason: str) -> None:
        self._add("left", worker_id, reason)

    def task_answered(self, worker_id: str, answer: TaskAnswer) -> None:
        result = encode_message(answer.result)
        facts = answer.task_id, answer.completed, result, answer.message, answer.traceback
        self._add("answered", worker_id, *facts)

    def fetch(self, confirmed: int, wait_s: float) -> list[tuple[int, Event]]:
        """Forget the events up to ``confirmed``; return the next ones, waiting for the first."""
        with self._news:
            self._confirmed = max(self._confirmed, confirmed)
            self._news.notify_all()
            while self._events and self._events[0][0] <= confirmed:
                self._events.popleft()
            self._news.wait_for(lambda: bool(self._events) or self.is_closed, wait_s)
            return list(self._events)

    def wait_confirmed(self, wait_s: float) -> bool:
        """Wait until all events so far are confirmed."""
        with self._news:
            count = self._count
            self._news.wait_for(lambda: self._confirmed >= count or self.is_closed, wait_s)
            return self._confirmed >= count

    def close(self) -> None:
        with self._news:
            self.is_closed = True
            self._news.notify_all()

    def _add(self, *event: Any) -> None:
        with self._news:
            self._count += 1
            self._events.append((self._count, event))
            self._news.notify_all()


class _Master:
    """What the hub keeps for one open coordinator."""

    def __init__(self, run: str, epoch: int, lease_s: float | None) -> None:
        self.epoch = epoch
        self.events = _Events()
        self.handler = RequestHandler(
            self.events,
            run,
            epoch,
            max_bytes=MAX_MESSAGE_BYTES,
            max_polls=WAITING_CALLS // 2,
            lease_s=lease_s,
            scheduler=ThreadScheduler(),
        )
        self.applied = 0
        self.lock = threading.Lock()

    def close(self) -> None:
        self.handler.close()
        self.events.close()


class Hub:
    """Serves the processes of one run. Thread safe; no call outlives the wait that it asks for.

    Args:
        run: Id of the run.
        store: Moves a frame to where many processes read it, and returns what they ask for it by.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        run: str,
        store: Callable[[Any], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._store = store or _ray_put
        self._clock = clock
        self._lock = threading.Lock()
        self._stored = threading.Condition(self._lock)
        self._master: _Master | None = None
        self._payloads: dict[str, tuple[str, Any, float]] = {}
        self._policies: dict[str, tuple[int, Any]] = {}

    # Of the coordinator:

    def open(self, lease_s: float | None) -> int:
        """Take another coordinator; workers of the one before have to join again.

        Returns:
            Its epoch, higher than all before, also those of a hub that died.
        """
        with self._lock:
            before = self._master
            epoch = max(time.time_ns() // 1_000_000, before.epoch + 1 if before else 1)
            self._master = _Master(self._run, epoch, lease_s)
        if before is not None:
            before.close()
        return epoch

    def apply(self, epoch: int, number: int, ops: Sequence[Op]) -> bool:
        """Do what a coordinator says, in order; False where it is not the open one.

        Args:
            epoch: Of the coordinator.
            number: Of the call, from 1; one that was done before does nothing.
            ops: See ``Op``.
        """
        master = self._master
        if master is None or master.epoch != epoch:
            return False
        with master.lock:
            if number <= master.applied:
                return True
            master.applied = number
            for kind, worker_id, inc, *task in ops:
                if kind == "drop":
                    master.handler.drop(worker_id, inc)
                    continue
                task_id, data = task
                message = TaskMessage(task_id, decode_message(data, MAX_MESSAGE_BYTES))
                try:
                    master.handler.send(worker_id, inc, message)
                except WorkerLostError:
                    continue  # the event that says so is on its way
        return True

    def events(self, epoch: int, confirmed: int, wait_s: float) -> list[tuple[int, Event]] | None:
        """Return what happened after event ``confirmed``; None where another coordinator is open.

        Waits for the first event.
        """
        master = self._master
        if master is None or master.epoch != epoch:
            return None
        return master.events.fetch(confirmed, wait_s)

    def abandon(self, worker_id: str) -> None:
        """Cut a worker off as if its host had died; it may join again."""
        if self._master is not None:
            self._master.handler.abandon(worker_id, None, "abandoned")

    def close_master(self, epoch: int, wait_s: float) -> None:
        """End a coordinator: workers are told that the run is over, as long as ``wait_s``."""
        master = self._master
        if master is None or master.epoch != epoch:
            return
        master.close()
        master.handler.wait_told(wait_s)
        with self._lock:
            if self._master is master:
                self._master = None

    # Of workers:

    def request(self, kind: str, body: bytes) -> Answer:
        """Return status and content of the answer to a request; see ``RequestHandler``."""
        master = self._master
        if master is None:
            return _unavailable()
        try:
            content = master.handler.handle(decode_request(body, kind, MAX_MESSAGE_BYTES))
            if kind == "join" and not master.events.wait_confirmed(CONFIRM_S):
                return _unavailable()  # the same join, sent again, finds itself done
            return Answer(200, content)
        except DingError as error:
            return answer_of(error)

    # Of stores:

    def put(self, data_id: str, digest: str, frame: Any) -> bool:
        """Keep a payload; False where another one has the id. To repeat a call changes nothing."""
        with self._lock:
            found = self._payloads.get(data_id)
        if found is None:
            kept = self._keep(frame)
            with self._stored:
                found = self._payloads.setdefault(data_id, (digest, kept, self._clock()))
                self._stored.notify_all()
        return found[0] == digest

    def get(self, data_id: str, wait_s: float) -> tuple[Any] | None:
        """Return the frame, or the reference to it, in a tuple; None where it is not there."""
        with self._stored:
            self._stored.wait_for(lambda: data_id in self._payloads, wait_s)
            found = self._payloads.get(data_id)
        return None if found is None else (found[1],)

    def has(self, data_id: str, wait_s: float) -> bool:
        """Whether a payload is there, or comes within ``wait_s``."""
        with self._stored:
            return self._stored.wait_for(lambda: data_id in self._payloads, wait_s)

    def delete(self, data_ids: Iterable[str]) -> None:
        """Forget payloads; those who read them keep them."""
        with self._lock:
            for data_id in data_ids:
                self._payloads.pop(data_id, None)

    def ages(self) -> dict[str, float]:
        """Return the payloads with their ages, s."""
        with self._lock:
            now = self._clock()
            return {data_id: now - since for data_id, (_, _, since) in self._payloads.items()}

    def publish(self, policy_id: str, version: int, frame: Any) -> None:
        """Make a version of a policy the newest one, if it is."""
        with self._lock:
            if policy_id in self._policies and self._policies[policy_id][0] >= version:
                return
        kept = self._keep(frame)
        with self._lock:
            if policy_id not in self._policies or self._policies[policy_id][0] < version:
                self._policies[policy_id] = version, kept

    def newest(self, policy_id: str, newer_than: int) -> tuple[int, Any] | None:
        """Return the newest version and its frame or reference; None where none is newer."""
        with self._lock:
            found = self._policies.get(policy_id)
        return found if found is not None and found[0] > newer_than else None

    def discard(self, policy_id: str) -> None:
        """Forget a policy."""
        with self._lock:
            self._policies.pop(policy_id, None)

    def _keep(self, frame: Any) -> Any:
        """Return the frame, or a reference to it, of which this process is the owner.

        A large argument of a call is an object of the caller, and lost with it.
        """
        return frame if isinstance(frame, bytes) else self._store(frame)


def _unavailable() -> Answer:
    return error_answer(503, "WorkerLostError", "no coordinator is open, or it does not answer")


class HubActor:
    """The hubs of the runs of one namespace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hubs: dict[str, Hub] = {}

    def call(self, run: str, method: str, *args: Any) -> Any:
        """Return what a method of a run's hub returns; the first call makes the hub."""
        with self._lock:
            hub = self._hubs.setdefault(run, Hub(run))
        return getattr(hub, method)(*args)

    def remove(self, run: str) -> int:
        """Remove the hub of a run; return how many are left."""
        with self._lock:
            self._hubs.pop(run, None)
            return len(self._hubs)


def _ray_put(frame: Any) -> Any:
    import ray

    return ray.put(frame)
