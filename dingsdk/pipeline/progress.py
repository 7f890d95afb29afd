"""The rates of a run, and its remaining time."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dingsdk.pipeline.context import RunStatus

WINDOW_S = 10.0
"""Rates are averages over the last so many seconds."""
LEAST_S = 0.05
"""Shortest time between two snapshots from which a rate is computed."""


class Rate:
    """A rate per second over the last ``WINDOW_S`` of a run. Not thread-safe."""

    def __init__(self) -> None:
        self._seen = deque([(0.0, 0)])

    def of(self, count: int, elapsed_s: float) -> float:
        """Return the rate, given that ``count`` was reached after ``elapsed_s``; 0 at the start."""
        seen = self._seen
        if elapsed_s - seen[-1][0] >= LEAST_S:
            seen.append((elapsed_s, count))
        while len(seen) > 2 and seen[1][0] <= elapsed_s - WINDOW_S:
            seen.popleft()
        (start_s, before), (end_s, after) = seen[0], seen[-1]
        # The count falls when a learner continues from its checkpoint.
        return max(0, after - before) / (end_s - start_s) if len(seen) > 1 else 0.0


class RunRates(NamedTuple):
    """Env steps and train iterations per second, and the remaining seconds.

    The remaining time is the time until the first limit is reached at these rates; None if there
    is no limit.
    """

    env_steps_per_s: float
    updates_per_s: float
    left_s: float | None


class RateMeter:
    """Measures the rates of a run, from one snapshot to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._env_steps = Rate()
        self._updates = Rate()

    def of(self, status: RunStatus) -> RunRates:
        """Return the rates, given the newest snapshot."""
        env_steps = status.env_steps - status.loaded_env_steps
        # A learner that has not loaded its checkpoint yet reports no iterations.
        train_iter = max(0, status.train_iter - status.loaded_train_iter)
        steps_per_s = self._env_steps.of(env_steps, status.elapsed_s)
        updates_per_s = self._updates.of(train_iter, status.elapsed_s)
        limits = (
            (status.max_env_steps, status.env_steps, steps_per_s),
            (status.max_train_iter, status.train_iter, updates_per_s),
        )
        left = (
            max(0, most - now) / rate for most, now, rate in limits if most is not None and rate
        )
        return RunRates(steps_per_s, updates_per_s, min(left, default=None))
