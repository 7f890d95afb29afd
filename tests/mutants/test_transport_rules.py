"""Each rule of the transport contract notices the transport that breaks it, and no other does.

A mutant is the in_memory transport with one defect. It must break its own rule; the rules that
the same defect cannot but break as well are named with it.
"""

from __future__ import annotations

import importlib
import pickle
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from dingsdk_in_memory.stores import MemoryDataStore, MemoryPolicyStore
from dingsdk_in_memory.transport import (
    Board,
    InMemoryTransport,
    MemoryMasterEnd,
    MemorySlaveEnd,
)

from dingsdk import SampleBatch
from dingsdk.errors import ClosedError, DataMissingError, ProtocolError, WorkerLostError
from dingsdk.testing import RULES, ContractError, check_transport
from dingsdk.worker.comm import MasterListener, TaskAnswer, TaskMessage, WorkerInfo

PATIENCE_S = 0.5


class Mutant(InMemoryTransport):
    """The transport as it is; mutants put one part in another's place."""

    breaks: int = 0
    also: frozenset[int] = frozenset()
    board: type[Board] = Board
    master: type[MemoryMasterEnd] = MemoryMasterEnd
    slave: type[MemorySlaveEnd] = MemorySlaveEnd
    data: type[MemoryDataStore] = MemoryDataStore
    policies: type[MemoryPolicyStore] = MemoryPolicyStore

    def __init__(self, run_dir: Path) -> None:
        super().__init__({"concurrency": "threads", "check_wire": True}, run_dir)
        self._board = self.board(self._scheduler, check_wire=True)
        self._data_store, self._policy_store = self.data(), self.policies()

    def master_end(self) -> MemoryMasterEnd:
        return self.master(self._board)

    def slave_end(self, address: str) -> MemorySlaveEnd:
        return self.slave(self._board)


MUTANTS: list[type[Mutant]] = []


def mutant(breaks: int, *also: int) -> Callable[[type], type[Mutant]]:
    """Make a mutant of a part: the class that it extends says which."""

    def make(part: type) -> type[Mutant]:
        if issubclass(part, Mutant):
            made = part
        else:
            bases = {
                Board: "board",
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


# --- messages ----------------------------------------------------------------------------------


class Meddler:
    """Stands before the listener; passes everything on."""

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


@mutant(1, 15)
class AnnouncesTwice(MemoryMasterEnd):
    def open(self, listener: MasterListener) -> str:
        class Twice(Meddler):
            def worker_joined(self, info: WorkerInfo) -> None:
                self.listener.worker_joined(info)
                self.listener.worker_joined(info)

        return super().open(Twice(listener))


@mutant(2, 11)
class NewestTaskFirst(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        if self._mailbox is not None and len(self._mailbox) == 10:
            self._mailbox.rotate(1)
        return super().next_task(timeout_s)


@mutant(2, 11)
class DeliversTheTenthTwice(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        if self._mailbox is not None and len(self._mailbox) == 10:
            self._mailbox.appendleft(self._mailbox[0])
        return super().next_task(timeout_s)


@mutant(3, 11)
class LooksForTasksAtTheDeadline(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        with self._board.condition:
            if not self._mailbox:
                self._board.condition.wait_for(lambda: self._shut or self._is_dropped, timeout_s)
        return super().next_task(0.0)


@mutant(4, 11)
class SendsToAll(MemoryMasterEnd):
    def send(self, worker_id: str, task: TaskMessage) -> None:
        super().send(worker_id, task)
        others = [name for name in self._board.mailboxes if name != worker_id]
        if len(others) > 2:
            super().send(others[0], task)


@mutant(5, 11)
class SwapsTwoAnswers(MemorySlaveEnd):
    held: TaskAnswer | None = None
    count = 0

    def answer(self, answer: TaskAnswer) -> None:
        self.count += 1
        if self.count == 7:
            self.held = answer
            return
        super().answer(answer)
        if self.held is not None:
            super().answer(self.held)
            self.held = None


@mutant(6)
class KeepsTheTraceback(MemorySlaveEnd):
    def answer(self, answer: TaskAnswer) -> None:
        super().answer(replace(answer, traceback=""))


@mutant(7)
class CountsIn32Bits(MemorySlaveEnd):
    def renew(self, progress: int) -> None:
        super().renew(progress & 0xFFFFFFFF)


@mutant(8)
class SendsByReference(Board):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        super().carry(data)
        return data


@mutant(9)
class SendsAnything(Board):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return super().carry(data)
        except ProtocolError:
            return data


@mutant(10, 12, 16)
class SendsIntoTheVoid(MemoryMasterEnd):
    def send(self, worker_id: str, task: TaskMessage) -> None:
        if worker_id in self._board.mailboxes:
            super().send(worker_id, task)


@mutant(11)
class DeafToTheSixth(MemoryMasterEnd):
    def open(self, listener: MasterListener) -> str:
        class Deaf(Meddler):
            def worker_renewed(self, worker_id: str, progress: int) -> None:
                if worker_id != "w5":
                    self.listener.worker_renewed(worker_id, progress)

        return super().open(Deaf(listener))


# --- incarnations --------------------------------------------------------------------------------


@mutant(12)
class DropsInSilence(MemoryMasterEnd):
    def drop(self, worker_id: str, reason: str) -> None:
        with self._board.condition:
            self._board.mailboxes.pop(worker_id, None)


@mutant(13, 15)
class TakesLateAnswers(MemorySlaveEnd):
    def answer(self, answer: TaskAnswer) -> None:
        try:
            super().answer(answer)
        except WorkerLostError:
            if self._board.listener is not None:
                self._board.listener.task_answered(self._worker_id, answer)
            raise


@mutant(14)
class KeepsOldTasks(MemoryMasterEnd):
    def drop(self, worker_id: str, reason: str) -> None:
        kept = self._board.mailboxes.get(worker_id)
        super().drop(worker_id, reason)
        if kept:
            self._board.kept = {worker_id: kept}  # type: ignore[attr-defined]

    def send(self, worker_id: str, task: TaskMessage) -> None:
        kept: dict[str, deque[TaskMessage]] = getattr(self._board, "kept", {})
        for old in kept.pop(worker_id, ()):
            super().send(worker_id, old)
        super().send(worker_id, task)


@mutant(15)
class ReplacesInSilence(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        with self._board.condition:
            self._board.mailboxes.pop(info.worker_id, None)
        super().join(info, timeout_s)


@mutant(15)
class ClosesTheNewOneToo(MemorySlaveEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        if not self._is_closed and self._is_dropped:
            self._board.leave(self._worker_id, "it left")
        super().close(timeout_s)


@mutant(16)
class LeavesInSilence(MemorySlaveEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        self._is_closed = True
        with self._board.condition:
            if not self._is_dropped:
                self._board.mailboxes.pop(self._worker_id, None)
            self._board.condition.notify_all()


# --- closing -------------------------------------------------------------------------------------


@mutant(17)
class GivesUpEarly(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        return super().next_task(timeout_s / 2)


@mutant(17)
class OverrunsItsDeadline(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        task = super().next_task(timeout_s)
        if task is None:
            time.sleep(2 * PATIENCE_S)
        return task


@mutant(18)
class JoinsWithoutPatience(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        super().join(info, 0.0)


@mutant(19)
class WakesNobodyAtItsClose(MemorySlaveEnd):
    def close(self, timeout_s: float = 5.0) -> None:
        self._is_closed = True
        with self._board.condition:
            known = not self._is_dropped
            if known:
                self._board.mailboxes.pop(self._worker_id, None)
        if known and self._board.listener is not None:
            self._board.listener.worker_left(self._worker_id, "it left")


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


@mutant(22)
class LeavesAFile(Mutant):
    left: list[Any] = []  # noqa: RUF012 - what it leaks

    def close(self, timeout_s: float = 5.0) -> None:
        super().close(timeout_s)
        self.left.append(Path("/dev/null").open())  # noqa: SIM115


@mutant(41)
class RemovesTheRun(Mutant):
    def remove_data(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)


# --- stores --------------------------------------------------------------------------------------


@mutant(23)
class ShowsItLater(MemoryDataStore):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        if timeout_s == 0.0 and data_id not in self.seen:
            self.seen.add(data_id)
            raise DataMissingError("not yet", data_id=data_id)
        return super().get(data_id, timeout_s)


@mutant(24)
class HandsOutCopies(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        found = super().get(data_id, timeout_s)
        return found.take(np.arange(len(found)))


@mutant(25)
class ReplacesPayloads(MemoryDataStore):
    def put(self, data_id: str, batch: SampleBatch) -> None:
        self.delete([data_id])
        super().put(data_id, batch)


@mutant(26, 20, 27)
class RaisesKeyError(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        return self._payloads[data_id]


@mutant(26)
class NamesNoPayload(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
        try:
            return super().get(data_id, timeout_s)
        except DataMissingError as error:
            raise DataMissingError(str(error)) from error


@mutant(27, 42)
class DeletesTheLastOfMany(MemoryDataStore):
    def delete(self, data_ids: Iterable[str]) -> None:
        super().delete(list(data_ids)[-1:])


@mutant(28)
class CutsLargePayloads(MemoryDataStore):
    def get(self, data_id: str, timeout_s: float = 2.0) -> SampleBatch:
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
class ForgetsNothing(MemoryPolicyStore):
    def discard(self, policy_id: str) -> None:
        pass


@mutant(42)
class SweepsAll(MemoryDataStore):
    def sweep_orphans(self, live_ids: Collection[str], grace_s: float) -> int:
        count = len(self)
        self._payloads.clear()
        return count


# --- safety --------------------------------------------------------------------------------------


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, Mapping):
        for item in value.values():
            yield from walk(item)


@mutant(33)
class LoadsPickles(Board):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        for each in walk(data):
            if isinstance(each, np.ndarray) and each.dtype == np.uint8 and each.ndim == 1:
                pickle.loads(each.tobytes())  # noqa: S301 - the defect
        return super().carry(data)


@mutant(33)
class ImportsNames(Board):
    def carry(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        for each in walk(data):
            if isinstance(each, Mapping):
                for name in each.get("import_names", ()):
                    importlib.import_module(name)
        return super().carry(data)


@mutant(33)
class EvaluatesText(MemoryMasterEnd):
    def send(self, worker_id: str, task: TaskMessage) -> None:
        for each in walk(task.data):
            if isinstance(each, str) and each.startswith("__import__"):
                eval(each)  # noqa: S307 - the defect
        super().send(worker_id, task)


@mutant(34)
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


# -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    yield
    sys.modules.pop("tabnanny", None)
    while LeavesAFile.left:  # type: ignore[attr-defined]
        LeavesAFile.left.pop().close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Mutant]) -> None:
    with pytest.raises(ContractError) as caught:
        check_transport(made, patience_s=PATIENCE_S)

    broken = set(caught.value.broken)
    assert made.breaks in broken
    assert broken <= {made.breaks, *made.also}, str(caught.value)


def test_unchanged_transport_breaks_no_rule() -> None:
    assert check_transport(Mutant, patience_s=PATIENCE_S).broken == ()


def test_every_rule_for_all_transports_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in RULES if not rule.needs}
