"""Defects of messages: joins, tasks, answers, renewals, and messages of lost workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dingsdk_in_memory.transport import (
    MemoryMasterEnd,
    MemorySlaveEnd,
)

from dingsdk.errors import ProtocolError
from dingsdk.worker.comm import MasterListener, TaskMessage, WorkerInfo

from .transport_mutant import mutant


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
