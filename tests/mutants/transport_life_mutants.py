"""Defects of deadlines and closing, and in the handling of received data."""

from __future__ import annotations

import importlib
import pickle
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from dingsdk_in_memory.stores import MemoryDataStore
from dingsdk_in_memory.transport import (
    MemoryMasterEnd,
    MemorySlaveEnd,
)

from dingsdk import SampleBatch
from dingsdk.errors import ClosedError
from dingsdk.worker.comm import TaskMessage, WorkerInfo

from .transport_mutant import PATIENCE_S, Mutant, mutant


@mutant(17)
class GivesUpEarly(MemorySlaveEnd):
    def next_task(self, timeout_s: float) -> TaskMessage | None:
        return super().next_task(timeout_s / 2)


@mutant(18)
class JoinsWithoutPatience(MemorySlaveEnd):
    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        super().join(info, 0.0)


@mutant(19)
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
