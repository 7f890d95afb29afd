"""The joined workers of a run and their leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dingsdk.worker.comm.transport import WorkerInfo


class WorkerPool:
    """The joined workers, each idle or busy, and the end of each worker's lease."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._workers: dict[str, WorkerInfo] = {}
        self._lease_ends: dict[str, float] = {}
        self._idle: dict[str, None] = {}  # a dict for its order: the longest idle comes first

    def add(self, info: WorkerInfo) -> None:
        """Add an idle worker with a fresh lease."""
        self._workers[info.worker_id] = info
        self._idle[info.worker_id] = None
        self.renew(info.worker_id)

    def remove(self, info: WorkerInfo) -> bool:
        """Remove a worker; False if its id is unknown or now belongs to another incarnation."""
        if self._workers.get(info.worker_id) != info:
            return False
        del self._workers[info.worker_id], self._lease_ends[info.worker_id]
        self._idle.pop(info.worker_id, None)
        return True

    def has_idle(self, role: str) -> bool:
        """Return whether a worker of the role has no task."""
        return any(self._workers[worker_id].role == role for worker_id in self._idle)

    def take(self, role: str) -> WorkerInfo | None:
        """Make the longest idle worker of a role busy and return it; None if there is none."""
        for worker_id in self._idle:
            if self._workers[worker_id].role == role:
                del self._idle[worker_id]
                return self._workers[worker_id]
        return None

    def take_one(self, info: WorkerInfo) -> None:
        """Make a worker busy."""
        self._idle.pop(info.worker_id, None)

    def give_back(self, info: WorkerInfo) -> None:
        """Make a worker idle again, unless it was lost since."""
        if self._workers.get(info.worker_id) == info:
            self._idle[info.worker_id] = None

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
