"""Which workers are idle."""

from __future__ import annotations

from dingsdk.worker.comm.transport import Role, WorkerInfo


class WorkerPool:
    """The joined workers of a run, each idle or busy. The caller locks."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerInfo] = {}
        self._idle: dict[str, None] = {}  # a dict for its order: the longest idle comes first

    def add(self, info: WorkerInfo) -> None:
        self._workers[info.worker_id] = info
        self._idle[info.worker_id] = None

    def get(self, worker_id: str) -> WorkerInfo | None:
        return self._workers.get(worker_id)

    def remove(self, info: WorkerInfo) -> bool:
        """Forget a worker; False where its id is unknown, or another incarnation's by now."""
        if self._workers.get(info.worker_id) != info:
            return False
        del self._workers[info.worker_id]
        self._idle.pop(info.worker_id, None)
        return True

    def has_idle(self, role: Role) -> bool:
        return any(self._workers[worker_id].role == role for worker_id in self._idle)

    def take(self, role: Role) -> WorkerInfo | None:
        """Return the longest idle worker of a role, now busy; None without one."""
        for worker_id in self._idle:
            if self._workers[worker_id].role == role:
                del self._idle[worker_id]
                return self._workers[worker_id]
        return None

    def give_back(self, worker: WorkerInfo) -> None:
        """Make a worker idle again, unless it was lost meanwhile."""
        if self._workers.get(worker.worker_id) == worker:
            self._idle[worker.worker_id] = None

    def count(self, role: Role) -> int:
        return sum(info.role == role for info in self._workers.values())
