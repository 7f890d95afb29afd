"""The in_memory transport with one defect each: of messages, deadlines, closing and stores."""

from __future__ import annotations

import importlib
import pickle
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from dingsdk_in_memory.stores import MemoryDataStore, MemoryPolicyStore
from dingsdk_in_memory.transport import InMemoryTransport, MemoryMasterEnd, MemorySlaveEnd

from dingsdk import SampleBatch
from dingsdk.errors import ClosedError, DataMissingError, ProtocolError
from dingsdk.worker.comm import MasterListener, TaskMessage, WorkerInfo

PATIENCE_S = 2.0


class Mutant(InMemoryTransport):
    """The unchanged transport; mutants replace one of its parts."""

    breaks: int = 0
    also: frozenset[int] = frozenset()
    master: type[MemoryMasterEnd] = MemoryMasterEnd
    slave: type[MemorySlaveEnd] = MemorySlaveEnd
    data: type[MemoryDataStore] = MemoryDataStore
    policies: type[MemoryPolicyStore] = MemoryPolicyStore

    def __init__(self, run_dir: Path) -> None:
        super().__init__({"concurrency": "threads", "check_wire": True}, run_dir)
        self._master = self.master(self._scheduler, check_wire=True)
        self._data_store, self._policy_store = self.data(), self.policies()

    def close(self, timeout_s: float = 5.0) -> None:
        # The transport closes correctly, even if close() of the mutated master end is broken.
        MemoryMasterEnd.close(self._master)
        self._scheduler.close(timeout_s)

    def slave_end(self, address: str) -> MemorySlaveEnd:
        return self.slave(self._master)


MUTANTS: list[type[Mutant]] = []


def mutant(breaks: int, *also: int) -> Callable[[type], type[Mutant]]:
    """Turn a class of a part into a mutant; its base class says which part it replaces."""

    def make(part: type) -> type[Mutant]:
        if issubclass(part, Mutant):
            made = part
        else:
            bases = {
                MemoryMasterEnd: "master",
                MemorySlaveEnd: "slave",
                MemoryDataStore: "data",
                MemoryPolicyStore: "policies",
            }
            slot = next(name for base, name in bases.items() if issubclass(part, base))
            made = type(part.__name__, (Mutant,), {slot: part})
        made.breaks, made.also = breaks, frozenset(also)
        MUTANTS.append(made)
        return made

    return make


class Meddler:
    """A proxy of the listener that forwards every call."""

    def __init__(self, listener: MasterListener) -> None:
        self.listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)


@mutant(1)
class ForgetsTheRole(MemoryMasterEnd):
    def open(self, listener: MasterListener) -> str:
        class Forgetful(Meddler):
            def worker_joined(self, info: WorkerInfo) -> None:
                self.listener.worker_joined(replace(info, role="collector"))

        return super().open(Forgetful(listener))


@mutant(11)
class DeliversTheTenthTwice(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        if self._mailbox is not None and len(self._mailbox) == 10:
            self._mailbox.appendleft(self._mailbox[0])
        return super().next_task(timeout_s)


@mutant(11)
class SendsToAll(MemoryMasterEnd):
    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        super().send(worker_id, incarnation, task)
        others = [name for name in self.mailboxes if name != worker_id]
        if len(others) > 2:
            super().send(others[0], self.joins[others[0]], task)


@mutant(8)
class SendsByReference(MemoryMasterEnd):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        super().carry(data)
        return data


@mutant(9)
class SendsAnything(MemoryMasterEnd):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return super().carry(data)
        except ProtocolError:
            return data


@mutant(12)
class DropsInSilence(MemoryMasterEnd):
    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        with self.condition:
            if self.joins[worker_id] == incarnation:
                self.mailboxes.pop(worker_id, None)


@mutant(14)
class KeepsOldTasks(MemoryMasterEnd):
    def drop(self, worker_id: str, incarnation: int, reason: str) -> None:
        kept = self.mailboxes.get(worker_id)
        super().drop(worker_id, incarnation, reason)
        if kept:
            self.kept = {worker_id: kept}  # type: ignore[attr-defined]

    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        kept: dict[str, deque[TaskMessage]] = getattr(self, "kept", {})
        for old in kept.pop(worker_id, ()):
            super().send(worker_id, incarnation, old)
        super().send(worker_id, incarnation, task)


@mutant(14)
class SendsToWhoeverHasTheName(MemoryMasterEnd):
    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        super().send(worker_id, self.joins[worker_id], task)


@mutant(15)
class ReplacesInSilence(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        with self._master.condition:
            self._master.mailboxes.pop(info.worker_id, None)
        super().join(info, timeout_s)


@mutant(16)
class LeavesInSilence(MemorySlaveEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        is_known, self._is_closed = not self._is_cut_off, True
        with self._master.condition:
            if is_known:
                self._master.mailboxes.pop(self._worker_id, None)
            self._master.condition.notify_all()


@mutant(17)
class GivesUpEarly(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        return super().next_task(timeout_s / 2)


@mutant(18)
class JoinsWithoutPatience(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        super().join(info, 0.0)


@mutant(21)
class WakesNobodyAtItsClose(MemorySlaveEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        known, self._is_closed = not self._is_cut_off, True
        with self._master.condition:
            if known:
                self._master.mailboxes.pop(self._worker_id, None)
        if known and self._master.listener is not None:
            self._master.listener.worker_left(self._worker_id, "it left")


@mutant(20, 21)
class SaysNothingOfTheEnd(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        try:
            return super().next_task(timeout_s)
        except ClosedError:
            if self._is_closed:
                raise
            return None


@mutant(21)
class ClosesOnce(MemoryMasterEnd):
    is_closed = False

    def close(self, timeout_s: float = 5.0) -> None:
        if self.is_closed:
            raise ClosedError("closed before", what="master end")
        self.is_closed = True
        super().close(timeout_s)


@mutant(22)
class LeavesAThread(Mutant):
    def close(self, timeout_s: float = 5.0) -> None:
        super().close(timeout_s)
        threading.Timer(3 * PATIENCE_S, print).start()


@mutant(41)
class RemovesTheRun(Mutant):
    def remove_data(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, Mapping):
        for item in value.values():
            yield from walk(item)


@mutant(33)
class LoadsPickles(MemoryMasterEnd):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        for each in walk(data):
            if isinstance(each, np.ndarray) and each.dtype == np.uint8 and each.ndim == 1:
                pickle.loads(each.tobytes())  # noqa: S301 - the defect
        return super().carry(data)


@mutant(33)
class ImportsNames(MemoryMasterEnd):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        for each in walk(data):
            if isinstance(each, Mapping):
                for name in each.get("import_names", ()):
                    importlib.import_module(name)
        return super().carry(data)


@mutant(33)
class EvaluatesText(MemoryMasterEnd):
    def send(self, worker_id: str, incarnation: int, task: TaskMessage) -> None:
        for each in walk(task.data):
            if isinstance(each, str) and each.startswith("__import__"):
                eval(each)  # noqa: S307 - the defect
        super().send(worker_id, incarnation, task)


@mutant(33)
class CallsBack(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        super().join(info, timeout_s)
        parts = urlsplit(str(info.resource.get("url", "")))
        if parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), 1.0).close()


@mutant(35)
class UsesIdsAsPaths(MemoryDataStore):
    def put(self, data_id: str, batch: SampleBatch) -> None:
        super().put(data_id, batch)
        if data_id.startswith("/"):
            Path(data_id).write_bytes(b"a payload")


@mutant(23)
class ShowsItLater(MemoryDataStore):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        if timeout_s == 0.0 and data_id not in self.seen:
            self.seen.add(data_id)
            raise DataMissingError("not yet", data_id=data_id)
        return super().get(data_id, timeout_s)


@mutant(25)
class ReplacesPayloads(MemoryDataStore):
    def put(self, data_id: str, batch: SampleBatch) -> None:
        self.delete([data_id])
        super().put(data_id, batch)


@mutant(27)
class NamesNoPayload(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        try:
            return super().get(data_id, timeout_s)
        except DataMissingError as error:
            raise DataMissingError(str(error)) from error


@mutant(28)
class CutsLargePayloads(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        return super().get(data_id, timeout_s)[:10_000]


@mutant(29)
class PublishesByReference(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        found = self.newest(policy_id, version - 1)
        super().publish(policy_id, state, version)
        if found is None:
            self._newest[policy_id] = (version, dict(state))


@mutant(30)
class GoesBack(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        self.discard(policy_id)
        super().publish(policy_id, state, version)


@mutant(31)
class PublishesInTwoSteps(MemoryPolicyStore):
    def publish(self, policy_id: str, state: Mapping[str, Any], version: int) -> None:
        old = self._newest.get(policy_id)
        if old is not None and old[0] < version:
            half = dict(list(state.items())[:2])
            self._newest[policy_id] = (version, {**old[1], **half})
            time.sleep(0.002)
            self.discard(policy_id)
        super().publish(policy_id, state, version)


@mutant(32)
class RemembersVersionsOfWhatItForgot(MemoryPolicyStore):
    def newest(
        self, policy_id: str, newer_than: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        last = self.__dict__.setdefault("last", {})
        found = super().newest(policy_id, newer_than)
        if found is None or found[0] < last.get(policy_id, 0):
            return None
        last[policy_id] = found[0]
        return found


@mutant(42)
class SweepsAll(MemoryDataStore):
    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        count = len(self)
        self._payloads.clear()
        return count
