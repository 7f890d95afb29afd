"""The joined workers of a run and their leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dingsdk.worker.comm.transport import WorkerInfo


class WorkerPool:
    """The joined workers, and the end of each worker's lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, WorkerInfo] = {}
        self._lease_ends: dict[str, float] = {}

    def add(self, info: WorkerInfo) -> None:
        """Add a worker with a fresh lease."""
        self._workers[info.worker_id] = info
        self.renew(info.worker_id)

    def remove(self, info: WorkerInfo) -> bool:
        """Remove a worker; False if its id is unknown or now belongs to another incarnation."""
        if self._workers.get(info.worker_id) != info:
            return False
        del self._workers[info.worker_id], self._lease_ends[info.worker_id]
        return True

    def of_role(self, role: str) -> list[WorkerInfo]:
        """Return the joined workers of a role."""
        return [info for info in self._workers.values() if info.role == role]

    def counts(self) -> Counter[str]:
        """Return the number of joined workers by role."""
        return Counter(info.role for info in self._workers.values())

    def leases(self) -> list[tuple[WorkerInfo, float]]:
        """Return the joined workers and the seconds until each lease ends."""
        now = self._clock()
        return [(info, self._lease_ends[name] - now) for name, info in self._workers.items()]

    def renew(self, worker_id: str) -> bool:
        """Renew a lease; False for a worker that is not joined."""
        if worker_id not in self._workers:
            return False
        self._lease_ends[worker_id] = self._clock() + self._lease_s
        return True

    def silent(self) -> list[WorkerInfo]:
        """Return the workers whose lease is over."""
        now = self._clock()
        return [info for name, info in self._workers.items() if self._lease_ends[name] <= now]
