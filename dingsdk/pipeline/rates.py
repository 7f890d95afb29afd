"""How fast a run gets on, smoothed."""

from __future__ import annotations

import math

from dingsdk.pipeline.context import RunStatus

MEMORY_S = 10.0
"""How long a change takes to count for 63 % of a rate."""
LEAST_S = 0.05
"""Time between two snapshots below which their difference says nothing."""


class Rate:
    """Counts a second, averaged with weights that fall exponentially with age. Not thread-safe.

    Counts come in lumps. The weighted count over the weighted time is a mean rate from the first
    moment on, which an average of single rates would not be.
    """

    def __init__(self) -> None:
        self._count = 0
        self._at_s = 0.0
        self._weighted_count = 0.0
        self._weighted_s = 0.0

    def of(self, count: int, elapsed_s: float) -> float:
        """Return the rate when there were ``count`` after ``elapsed_s`` seconds; 0 at the start."""
        passed_s = elapsed_s - self._at_s
        if passed_s >= LEAST_S:
            kept = math.exp(-passed_s / MEMORY_S)
            # Within the time that passed the weight falls too: its integral is 1 - kept.
            weight = MEMORY_S * (1 - kept) / passed_s
            # Fewer: a learner goes on from its checkpoint.
            more = max(0, count - self._count)
            self._weighted_count = kept * self._weighted_count + weight * more
            self._weighted_s = kept * self._weighted_s + weight * passed_s
            self._count, self._at_s = count, elapsed_s
        return self._weighted_count / self._weighted_s if self._weighted_s else 0.0


class RunRates:
    """The rates of a run, from one snapshot to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._env_steps = Rate()
        self._updates = Rate()

    def of(self, status: RunStatus) -> tuple[float, float, float | None]:
        """Return env steps and train iterations a second, and the seconds left at these rates.

        Those are until the first limit is reached; None without one.
        """
        steps_per_s = self._env_steps.of(status.env_steps, status.elapsed_s)
        updates_per_s = self._updates.of(status.train_iter, status.elapsed_s)
        limits = (
            (status.max_env_steps, status.env_steps, steps_per_s),
            (status.max_train_iter, status.train_iter, updates_per_s),
        )
        left = (
            max(0, most - now) / rate for most, now, rate in limits if most is not None and rate
        )
        return steps_per_s, updates_per_s, min(left, default=None)
