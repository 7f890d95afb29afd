"""The clock of a run."""

from __future__ import annotations

from collections.abc import Callable


class RunClock:
    """Monotonic seconds, without those in which this process was stopped or too busy to receive.

    Nothing arrives in that time, so it counts neither for leases nor for other limits. It does
    count in ``elapsed_s``.

    Args:
        clock: Monotonic seconds.
        most_s: Longest time between two calls of ``look`` in which the process was not stopped.
    """

    def __init__(self, clock: Callable[[], float], most_s: float) -> None:
        self._clock = clock
        self._most_s = most_s
        self._looked_at = clock()
        self._stopped_s = 0.0
        self._began_at: float | None = None

    def __call__(self) -> float:
        return self._clock() - self._stopped_s

    def look(self) -> None:
        """Leave out the time since the last call if it is too long; call this often."""
        now = self._clock()
        stalled_s, self._looked_at = now - self._looked_at, now
        if stalled_s > self._most_s:
            # Renewals of leases may wait to be received.
            self._stopped_s += stalled_s

    def begin(self) -> None:
        """Note that collecting begins, if it has not begun."""
        if self._began_at is None:
            self._began_at = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first collector got its task, with earlier coordinators; 0 before."""
        return 0.0 if self._began_at is None else self._clock() - self._began_at

    @elapsed_s.setter
    def elapsed_s(self, seconds: float) -> None:
        self._began_at = self._clock() - seconds if seconds > 0 else None
