"""The transport in a simulation: its mailboxes, shared by processes that are killed and stopped.

It has no network, so connections never fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, ParamSpec

from dingsdk_in_memory.stores import MemoryPolicyStore
from dingsdk_in_memory.transport import MemoryMasterEnd, MemorySlaveEnd

from dingsdk.worker.comm import MasterEnd, PolicyStore, SlaveEnd, TaskAnswer, WorkerInfo
from tools.simulation import SimulatedProcess, SimulatedTransport

P = ParamSpec("P")


class SimulatedInMemory(SimulatedTransport):
    """One process's part of a simulated run; arguments as ``SimulatedTransport``."""

    has_network: ClassVar[bool] = False

    def master_end(self) -> MasterEnd:
        end = MemoryMasterEnd(self.process.scheduler, check_wire=False)
        self.disk.shared["in_memory"] = end
        return end

    def policy_store(self) -> PolicyStore:
        store = self.disk.shared.setdefault("policies", MemoryPolicyStore())
        assert isinstance(store, MemoryPolicyStore)
        return store

    def slave_end(self, address: str) -> SlaveEnd:
        end = self.disk.shared["in_memory"]
        assert isinstance(end, MemoryMasterEnd)  # made by the coordinator, which comes first
        return _SlaveEnd(self.process, end)


class _SlaveEnd(MemorySlaveEnd):
    """Calls the master like a message: the process is not killed in the middle of a call."""

    def __init__(self, process: SimulatedProcess, master: MemoryMasterEnd) -> None:
        super().__init__(master)
        self._process = process

    def join(self, info: WorkerInfo, timeout_s: float) -> None:
        self._as_one(super().join, info, timeout_s)

    def answer(self, answer: TaskAnswer) -> None:
        self._as_one(super().answer, answer)

    def renew(self, progress: int) -> None:
        self._as_one(super().renew, progress)

    def close(self, timeout_s: float = 5.0) -> None:
        self._as_one(super().close, timeout_s)

    def _as_one(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function without letting other jobs run during the call, unless it waits."""
        job = self._process.world.current
        assert job is not None  # only jobs have a connection
        before, job.is_preemptive = job.is_preemptive, False
        try:
            call(*args, **kwargs)
        finally:
            job.is_preemptive = before
