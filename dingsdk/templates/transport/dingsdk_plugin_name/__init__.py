"""A transport for workers that are threads of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from dingsdk import hookimpl
from dingsdk.data import SampleBatch, decode_message, encode_message
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    DataMissingError,
    WorkerLostError,
)
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

__all__ = ["PluginNameTransport"]

ADDRESS = "plugin-name"


def carried(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as the other side gets it; ProtocolError if it is not plain data."""
    found: Mapping[str, Any] = decode_message(encode_message(data))
    return found


def copied(value: Any) -> Any:
    """Return a copy of a tensor or an array."""
    return value.detach().clone() if hasattr(value, "detach") else value.copy()


@dataclass(eq=False, slots=True)
class Seat:
    """One incarnation of a worker.

    Attributes:
        incarnation: Its number, higher than that of any earlier one.
        tasks: The tasks that wait for it.
        over: Why it has ended; empty while it has not.
        is_replaced: Whether it ended because another worker joined under its id.
    """

    incarnation: int
    tasks: deque[TaskMessage] = field(default_factory=deque)
    over: str = ""
    is_replaced: bool = False


class LocalMasterEnd(MasterEnd):
    """The coordinator's end, and the state that the workers' ends share."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.changed = scheduler.condition()
        # Held during calls of the listener, so that joins and leaves of an id come in order.
        self.telling = threading.RLock()
        self.listener: MasterListener | None = None
        self.seats: dict[str, Seat] = {}
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
            seat = self.seats.get(worker_id)
            if seat is None or seat.incarnation != incarnation:
                raise WorkerLostError(f"worker {worker_id!r} is not joined", worker_id=worker_id)
            seat.tasks.append(message)
            self.changed.notify_all()

    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        with self.changed:
            seat = self.seats.get(worker_id)
            if seat is not None and seat.incarnation == incarnation:
                self._end(worker_id, f"the master gave it up: {reason}")

    def close(self, timeout_s: float = 5.0) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def seat(self, info: WorkerInfo) -> Seat:
        """Let a worker join; it replaces a joined worker with the same id."""
        resource = carried(info.resource)
        with self.telling:
            with self.changed:
                listener = self.listener
                assert listener is not None  # the worker's end waited for the master
                self.joins += 1
                seat = Seat(self.joins)
                is_replacing = info.worker_id in self.seats
                if is_replacing:
                    self._end(info.worker_id, "another worker joined under its id", replaced=True)
                self.seats[info.worker_id] = seat
            if is_replacing:
                listener.worker_left(info.worker_id, "replaced by a new incarnation")
            told = replace(info, resource=resource, incarnation=seat.incarnation)
            listener.worker_joined(told)
        return seat

    def leave(self, worker_id: str, seat: Seat) -> None:
        """Remove a worker that closes its end; does nothing if its incarnation has ended."""
        with self.telling:
            with self.changed:
                if seat.over:
                    return
                self._end(worker_id, LEFT)
                listener = self.listener
            if listener is not None:
                listener.worker_left(worker_id, LEFT)

    def _end(self, worker_id: str, why: str, *, replaced: bool = False) -> None:
        seat = self.seats.pop(worker_id)
        seat.over, seat.is_replaced = why, replaced
        seat.tasks.clear()
        self.changed.notify_all()


class LocalSlaveEnd(SlaveEnd):
    """A worker's end."""

    def __init__(self, master: LocalMasterEnd) -> None:
        self._master = master
        self._worker_id = ""
        self._seat: Seat | None = None
        self._is_closed = False

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        master = self._master
        self._worker_id = info.worker_id
        with master.changed:
            master.changed.wait_for(lambda: master.listener is not None or self._is_shut, timeout_s)
            if self._is_shut:
                raise ClosedError("the connection is closed", what="slave end")
            if master.listener is None:
                raise WorkerLostError(
                    f"no master within {timeout_s:.1f} s", worker_id=info.worker_id
                )
        self._seat = master.seat(info)
        self.lease_s = master.lease_s

    def next_task(self, timeout_s: float) -> TaskMessage | None:
        master, seat = self._master, self._seat
        with master.changed:
            self._check()
            assert seat is not None
            master.changed.wait_for(
                lambda: bool(seat.tasks) or bool(seat.over) or self._is_shut, timeout_s
            )
            self._check()
            return seat.tasks.popleft() if seat.tasks else None

    def answer(self, answer: TaskAnswer) -> None:
        told = replace(answer, result=carried(answer.result))
        self._listener().task_answered(self._worker_id, told)

    def renew(self, progress: int) -> None:
        self._listener().worker_renewed(self._worker_id, progress)

    def check(self) -> None:
        with self._master.changed:
            self._check()

    def close(self, timeout_s: float = 5.0) -> None:
        with self._master.changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._master.changed.notify_all()
        if self._seat is not None:
            self._master.leave(self._worker_id, self._seat)

    @property
    def _is_shut(self) -> bool:
        return self._is_closed or self._master.is_closed

    def _check(self) -> None:
        if self._is_shut:
            raise ClosedError(f"the connection of {self._worker_id!r} is closed", what="slave end")
        if self._seat is None or self._seat.over:
            why = "it never joined" if self._seat is None else self._seat.over
            raise WorkerLostError(
                f"worker {self._worker_id!r}: {why}",
                worker_id=self._worker_id,
                replaced=self._seat is not None and self._seat.is_replaced,
            )

    def _listener(self) -> MasterListener:
        with self._master.changed:
            self._check()
            assert self._master.listener is not None
            return self._master.listener


class LocalDataStore(StepDataStore):
    """Stores payloads by reference; ``put`` makes them read-only."""

    def __init__(self) -> None:
        self._payloads: dict[str, SampleBatch] = {}
        self._unowned: dict[str, float] = {}

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

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        now = time.monotonic()
        self._unowned = {
            data_id: self._unowned.get(data_id, now)
            for data_id in tuple(self._payloads)
            if not is_live(data_id)
        }
        old = [data_id for data_id, since in self._unowned.items() if now - since >= grace_s]
        self.delete(old)
        return len(old)

    def __len__(self) -> int:
        return len(self._payloads)


class LocalPolicyStore(PolicyStore):
    """The newest version of each policy, copied when it is published."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, dict[str, Any]]] = {}

    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        copies = {name: copied(value) for name, value in state.items()}
        with self._lock:
            if policy_id not in self._newest or self._newest[policy_id][0] < version:
                self._newest[policy_id] = (version, copies)

    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
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
            raise ConfigError(
                f"this transport has one address, {ADDRESS!r}, not {address!r}",
                path="system.transport",
            )
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
