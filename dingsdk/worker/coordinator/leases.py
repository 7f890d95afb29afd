"""Leases: who has to be heard of by when."""

from __future__ import annotations

from collections.abc import Callable


class LeaseTable:
    """Deadlines by worker id, on an injected monotonic clock. The caller locks.

    Args:
        lease_s: Silence that ends a lease.
        clock: Monotonic seconds.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._ends: dict[str, float] = {}

    def grant(self, worker_id: str) -> None:
        """Start or renew a lease."""
        self._ends[worker_id] = self._clock() + self._lease_s

    def renew(self, worker_id: str) -> bool:
        """Renew a lease; False when there is none (it expired, or was never granted)."""
        if worker_id not in self._ends:
            return False
        self.grant(worker_id)
        return True

    def postpone(self, seconds: float) -> None:
        """Move every deadline: for a time in which nobody could have been heard."""
        for worker_id in self._ends:
            self._ends[worker_id] += seconds

    def end(self, worker_id: str) -> None:
        self._ends.pop(worker_id, None)

    def expired(self) -> list[str]:
        """Return the workers whose lease is over; their leases are gone afterwards."""
        now = self._clock()
        late = [worker_id for worker_id, end in self._ends.items() if end <= now]
        for worker_id in late:
            del self._ends[worker_id]
        return late
