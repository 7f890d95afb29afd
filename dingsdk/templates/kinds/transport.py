"""A transport for workers that are threads of one process.

A transport carries control messages, step data and policies between the workers of a run and their master.
Start by replacing the two ends: `MasterEnd` listens, `SlaveEnd` connects to the address that the master's
`open` returns. You can keep the stores until workers run in other processes. Once a second process can
join, add `processes` to `places`, and `many_processes` to `contract_capabilities`. The tutorial "Write a
transport" explains each part.

    system:
      transport:
        type: plugin_name
      collector_num: 2
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from dingsdk import hookimpl
from dingsdk.data import SampleBatch, decode_message, encode_message
from dingsdk.errors import ClosedError, ConfigError, ConflictError, DataMissingError, WorkerLostError
from dingsdk.plugins import Registry
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

ADDRESS = "plugin-name"


def carried(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as the other side gets it; ProtocolError if it is not plain data."""
    found: Mapping[str, Any] = decode_message(encode_message(data))
    return found


@dataclass(eq=False)
class Joined:
    """One incarnation of a worker, its waiting tasks, and why it has ended ("" while it has not)."""

    incarnation: int = 0
    tasks: deque[TaskMessage] = field(default_factory=deque)
    ended: str = ""
    is_replaced: bool = False


class LocalMasterEnd(MasterEnd):
    """The coordinator's end, and the state that the workers' ends share under its condition."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.changed = scheduler.condition()
        # Held during calls of the listener, so that the joins and leaves of an id come in order.
        self.reporting = threading.RLock()
        self.listener: MasterListener | None = None
        self.workers: dict[str, Joined] = {}
        self.joins = 0
        self.is_closed = False

    def open(self, listener: MasterListener) -> str:
        with self.changed:
            self.listener = listener
            self.changed.notify_all()
        return ADDRESS

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        message = TaskMessage(task.task_id, carried(task.data))
        with self.changed:
            worker = self.workers.get(worker_id)
            if worker is None or worker.incarnation != incarnation:
                raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)
            worker.tasks.append(message)
            self.changed.notify_all()

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        with self.changed:
            worker = self.workers.get(worker_id)
            if worker is not None and worker.incarnation == incarnation:
                self.end(worker_id, f"the master gave it up: {reason}")

    def end(self, worker_id: str, why: str, is_replaced: bool = False) -> None:
        """End the incarnation of a worker that is joined; called with the condition held."""
        worker = self.workers.pop(worker_id)
        worker.ended, worker.is_replaced = why, is_replaced
        worker.tasks.clear()
        self.changed.notify_all()

    def close(self, timeout_s: float = 5.0) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class LocalSlaveEnd(SlaveEnd):
    """A worker's end."""

    def __init__(self, master: LocalMasterEnd) -> None:
        self._master, self._id, self._is_closed = master, "", False
        self._me = Joined(ended="it never joined")

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        master, self._id = self._master, info.worker_id
        resource = carried(info.resource)
        with master.changed:
            master.changed.wait_for(lambda: master.listener is not None or self._is_shut, timeout_s)
        with master.reporting:
            with master.changed:
                listener = self._open_listener(f"no master within {timeout_s:.1f} s")
                master.joins += 1
                self._me = Joined(master.joins)
                is_replacing = self._id in master.workers
                if is_replacing:
                    master.end(self._id, "another worker joined under its id", is_replaced=True)
                master.workers[self._id] = self._me
            if is_replacing:
                listener.worker_left(self._id, "replaced by a new incarnation")
            listener.worker_joined(replace(info, resource=resource, incarnation=self._me.incarnation))
        self.lease_s = master.lease_s

    def next_task(self, timeout_s: float) -> TaskMessage | None:
        me, changed = self._me, self._master.changed
        with changed:
            self._check()
            changed.wait_for(lambda: bool(me.tasks or me.ended) or self._is_shut, timeout_s)
            self._check()
            return me.tasks.popleft() if me.tasks else None

    def answer(self, answer: TaskAnswer) -> None:
        listener = self._joined_listener()
        listener.task_answered(self._id, replace(answer, result=carried(answer.result)))

    def renew(self, progress: int) -> None:
        self._joined_listener().worker_renewed(self._id, progress)

    def check(self) -> None:
        with self._master.changed:
            self._check()

    def close(self, timeout_s: float = 5.0) -> None:
        master = self._master
        with master.reporting:
            with master.changed:
                self._is_closed = True
                master.changed.notify_all()
                listener = None if self._me.ended else master.listener
                if listener is not None:
                    master.end(self._id, LEFT)
            if listener is not None:
                listener.worker_left(self._id, LEFT)

    @property
    def _is_shut(self) -> bool:
        return self._is_closed or self._master.is_closed

    def _open_listener(self, otherwise: str) -> MasterListener:
        if self._is_shut:
            raise ClosedError(f"the connection of {self._id!r} is closed", what="slave end")
        if self._master.listener is None:
            raise WorkerLostError(otherwise, worker_id=self._id)
        return self._master.listener

    def _check(self) -> MasterListener:
        listener = self._open_listener("it never joined")
        if self._me.ended:
            raise WorkerLostError(
                f"worker {self._id!r}: {self._me.ended}", worker_id=self._id, replaced=self._me.is_replaced
            )
        return listener

    def _joined_listener(self) -> MasterListener:
        with self._master.changed:
            return self._check()


class LocalDataStore(StepDataStore):
    """Stores payloads by reference; ``put`` makes them read-only."""

    def __init__(self) -> None:
        self._payloads: dict[str, SampleBatch] = {}

    def put(self, data_id: str, batch: SampleBatch) -> None:
        present = self._payloads.setdefault(data_id, batch.freeze())
        if present is not batch and present != batch:
            raise ConflictError(f"payload {data_id!r} exists, and is another", data_id=data_id)

    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        found = self._payloads.get(data_id)
        if found is None:
            raise DataMissingError(f"there is no payload {data_id!r}", data_id=data_id)
        return found

    def delete(self, data_ids: Iterable[str]) -> None:
        for data_id in data_ids:
            self._payloads.pop(data_id, None)

    def __len__(self) -> int:
        return len(self._payloads)


class LocalPolicyStore(PolicyStore):
    """The newest version of each policy, copied when it is published."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, dict[str, Any]]] = {}

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        copies = copy.deepcopy(dict(state))
        with self._lock:
            if policy_id not in self._newest or self._newest[policy_id][0] < version:
                self._newest[policy_id] = (version, copies)

    def newest(self, policy_id: str, newer_than: int | None = None) -> tuple[int, dict[str, Any]] | None:
        with self._lock:
            version, state = self._newest.get(policy_id, (-1, {}))
        least = 0 if newer_than is None else newer_than + 1
        return (version, dict(state)) if version >= least else None

    def discard(self, policy_id: str) -> None:
        with self._lock:
            self._newest.pop(policy_id, None)


class PluginNameTransport(Transport):
    """A transport whose workers are all threads of this process."""

    class Config(Transport.Config, frozen=True, kw_only=True):
        """Section ``system.transport``."""

        type: str = "plugin_name"

    contract_capabilities: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, cfg: Mapping[str, Any], run_dir: Path) -> None:
        super().__init__(cfg, run_dir)
        self._scheduler = ThreadScheduler()
        self._master = LocalMasterEnd(self._scheduler)
        self._data, self._policies = LocalDataStore(), LocalPolicyStore()

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def master_end(self) -> MasterEnd:
        return self._master

    def slave_end(self, address: str) -> SlaveEnd:
        if address != ADDRESS:
            raise ConfigError(f"this transport has one address, {ADDRESS!r}, not {address!r}", path="system.transport")
        return LocalSlaveEnd(self._master)

    def data_store(self) -> StepDataStore:
        return self._data

    def policy_store(self) -> PolicyStore:
        return self._policies

    def close(self, timeout_s: float = 5.0) -> None:
        self._master.close(timeout_s)
        self._scheduler.close(timeout_s)


@hookimpl
def dingsdk_register_transports(registry: Registry) -> None:
    """Register the transport under its type key."""
    registry.register("plugin_name", PluginNameTransport)
