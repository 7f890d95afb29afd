"""The in_memory transport: a mailbox per worker, stores by reference."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from dingsdk.data import decode_message, encode_message
from dingsdk.errors import ClosedError, ConfigError, WorkerLostError
from dingsdk.runtime import checked_timeout
from dingsdk.worker.comm import (
    LEFT,
    MasterEnd,
    MasterListener,
    PolicyStore,
    Scheduler,
    SlaveEnd,
    StepDataStore,
    TaskAnswer,
    TaskMessage,
    ThreadScheduler,
    Transport,
    WorkerInfo,
)
from dingsdk_in_memory.greenlets import GreenletScheduler
from dingsdk_in_memory.stores import MemoryDataStore, MemoryPolicyStore

ADDRESS = "memory"

_SCHEDULERS = {"greenlets": GreenletScheduler, "threads": ThreadScheduler}


class InMemoryTransport(Transport):
    """Workers in the run's own process: payloads and policies are passed by reference."""

    class Config(Transport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``.

        Attributes:
            concurrency: How workers run in the process: as ``greenlets`` of one thread, or as
                ``threads``.
            check_wire: Whether to encode and decode every message, as other transports do.
        """

        type: str = "in_memory"
        concurrency: Literal["greenlets", "threads"] = "greenlets"
        check_wire: bool = False

    contract_config: ClassVar[Mapping[str, Any]] = {"check_wire": True}
    """Settings for `dingsdk check`: by default messages are not checked, for speed."""

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._scheduler: Scheduler = _SCHEDULERS[self.cfg.concurrency]()
        self._data_store = MemoryDataStore()
        self._policy_store = MemoryPolicyStore()
        self._master = MemoryMasterEnd(self._scheduler, check_wire=self.cfg.check_wire)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def master_end(self) -> MasterEnd:
        return self._master

    def slave_end(self, address: str) -> SlaveEnd:
        if address != ADDRESS:
            raise ConfigError(
                f"the in_memory transport has one address, {ADDRESS!r}, not {address!r}; for "
                "workers on other hosts choose another transport",
                path="system.transport",
            )
        return MemorySlaveEnd(self._master)

    def data_store(self) -> StepDataStore:
        return self._data_store

    def policy_store(self) -> PolicyStore:
        return self._policy_store

    def abandon_worker(self, worker_id: str) -> None:
        """Cut a worker off as if its host had died; it may join again."""
        self._master.leave(worker_id, "abandoned")

    def close(self, timeout_s: float = 5.0) -> None:
        self._master.close()
        self._scheduler.close(timeout_s)


class MemoryMasterEnd(MasterEnd):
    """The coordinator's end: the listener, and a mailbox for each joined worker."""

    def __init__(self, scheduler: Scheduler, *, check_wire: bool) -> None:
        self.condition = scheduler.condition()
        self.joining = threading.RLock()  # held while joins and leaves are reported
        self.listener: MasterListener | None = None
        self.mailboxes: dict[str, deque[TaskMessage]] = {}
        self.joins: Counter[str] = Counter()
        self.is_closed = False
        self._check_wire = check_wire

    def open(self, listener: MasterListener) -> str:
        with self.condition:
            self.listener = listener
            self.condition.notify_all()
        return ADDRESS

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        carried = self.carry(task.data)
        message = task if carried is task.data else TaskMessage(task.task_id, carried)
        with self.condition:
            mailbox = self.mailboxes.get(worker_id)
            if mailbox is None or self.joins[worker_id] != incarnation:
                raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)
            mailbox.append(message)
            self.condition.notify_all()

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        with self.condition:
            if self.joins[worker_id] == incarnation:
                self.mailboxes.pop(worker_id, None)
                self.condition.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        with self.condition:
            self.is_closed = True
            self.mailboxes.clear()
            self.condition.notify_all()

    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return message data as the other side receives it."""
        if not self._check_wire:
            return data
        carried: Mapping[str, Any] = decode_message(encode_message(data))
        return carried

    def leave(self, worker_id: str, reason: str, mailbox: deque[TaskMessage] | None = None) -> None:
        """Remove a worker, or only the one that has ``mailbox``, and report it to the listener."""
        with self.joining:
            with self.condition:
                found = self.mailboxes.get(worker_id)
                if found is None or (mailbox is not None and mailbox is not found):
                    return
                del self.mailboxes[worker_id]
                self.condition.notify_all()
            if self.listener is not None:
                self.listener.worker_left(worker_id, reason)


class MemorySlaveEnd(SlaveEnd):
    """A worker's end: takes tasks from its mailbox."""

    def __init__(self, master: MemoryMasterEnd) -> None:
        self._master = master
        self._worker_id = ""
        self._mailbox: deque[TaskMessage] | None = None
        self._is_closed = False

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        timeout_s = checked_timeout(timeout_s)
        master = self._master
        self._worker_id = info.worker_id
        with master.condition:
            master.condition.wait_for(lambda: master.listener is not None or self._shut, timeout_s)
            if self._shut:
                raise self._closed()
            listener = master.listener
            if listener is None:
                raise WorkerLostError(
                    f"no master within {timeout_s:.1f} s", worker_id=info.worker_id
                )
        resource = master.carry(info.resource)
        with master.joining:
            with master.condition:
                # In one step: a replaced worker that only found its mailbox missing would rejoin
                # and take the id back.
                is_replacing = info.worker_id in master.mailboxes
                self._mailbox = master.mailboxes[info.worker_id] = deque()
                master.joins[info.worker_id] += 1
                incarnation = master.joins[info.worker_id]
                self.lease_s = master.lease_s
                master.condition.notify_all()
            if is_replacing:
                listener.worker_left(info.worker_id, "replaced by a new incarnation")
            listener.worker_joined(replace(info, resource=resource, incarnation=incarnation))

    def next_task(self, timeout_s: float) -> TaskMessage | None:
        timeout_s = checked_timeout(timeout_s)
        with self._master.condition:
            self._master.condition.wait_for(
                lambda: bool(self._mailbox) or self._is_cut_off, timeout_s
            )
            self.check()
            return self._mailbox.popleft() if self._mailbox else None

    def answer(self, answer: TaskAnswer) -> None:
        carried = self._master.carry(answer.result)
        if carried is not answer.result:
            answer = replace(answer, result=carried)
        self._listener().task_answered(self._worker_id, answer)

    def renew(self, progress: int) -> None:
        self._listener().worker_renewed(self._worker_id, progress)

    def close(self, timeout_s: float = 5.0) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._mailbox is not None:
            self._master.leave(self._worker_id, LEFT, self._mailbox)

    @property
    def _shut(self) -> bool:
        return self._is_closed or self._master.is_closed

    @property
    def _is_cut_off(self) -> bool:
        # Called several times per message, so one expression: closed, never joined, or dropped.
        master, mailbox = self._master, self._mailbox
        is_closed = self._is_closed or master.is_closed
        return is_closed or mailbox is None or master.mailboxes.get(self._worker_id) is not mailbox

    def check(self) -> None:
        # Without the lock: each read is atomic, and the result may be outdated at once anyway.
        if not self._is_cut_off:
            return
        if self._shut:
            raise self._closed()
        replaced = self._worker_id in self._master.mailboxes
        why = "another worker has joined under its id" if replaced else "the master gave it up"
        raise WorkerLostError(
            f"worker {self._worker_id!r}: {why}", worker_id=self._worker_id, replaced=replaced
        )

    def _listener(self) -> MasterListener:
        self.check()
        listener = self._master.listener
        assert listener is not None  # join waited for it
        return listener

    def _closed(self) -> ClosedError:
        return ClosedError(f"the connection of {self._worker_id!r} is closed", what="slave end")
