"""How fast each worker is, compared with the other workers of its kind."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

SLOW_WINDOWS = 2
"""A worker that is slow in this many windows in a row is a straggler."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of one worker at one kind of work. Time without a task does not count.

    Attributes:
        kind: The kind of work: ``collector``, ``evaluator`` or ``learner``.
        per_s: Env steps per second, or iterations of a learner, in its last window.
        relative: ``per_s`` divided by the median of the other workers of its kind; None if there
            are none.
        is_straggler: Whether the worker is a straggler, see ``PaceBoard``.
    """

    kind: str
    per_s: float
    relative: float | None
    is_straggler: bool


@dataclass(slots=True)
class _Runner:
    """A worker's current window, and the pace of its last one."""

    since: float
    is_busy: bool = False
    total: int = 0  # progress of the current task
    busy_s: float = 0.0
    amount: int = 0
    slow_windows: int = 0
    pace: Pace | None = None

    def count(self, now: float) -> None:
        if self.is_busy:
            self.busy_s += now - self.since
            self.since = now


class PaceBoard:
    """Keeps the pace of each worker. The caller locks.

    A worker's window ends when it was busy for half of ``window_s``; short tasks add up. A worker
    becomes a straggler after ``SLOW_WINDOWS`` windows in a row in which it was more than ``factor``
    times slower than the median of the others. It stops being one after a window in which it was
    less than ``sqrt(factor)`` times slower, so that a worker near the limit does not alternate.

    Args:
        factor: How many times slower a straggler is, > 1.
        window_s: Seconds over which paces are compared, > 0.
    """

    def __init__(self, factor: float, window_s: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._window_s = window_s
        self._clock = clock
        self._runners: dict[tuple[str, str], _Runner] = {}

    def start(self, worker_id: str, kind: str) -> None:
        """Note that a worker begins to work on a task."""
        now = self._clock()
        runner = self._runners.setdefault((worker_id, kind), _Runner(now))
        runner.since, runner.total, runner.is_busy = now, 0, True

    def note(self, worker_id: str, kind: str, total: int) -> None:
        """Note a worker's progress since its task began."""
        runner = self._runners.get((worker_id, kind))
        if runner is not None and total > runner.total:
            runner.amount += total - runner.total
            runner.total = total

    def end(self, worker_id: str, kind: str) -> None:
        """Note that a worker's task is over."""
        runner = self._runners.get((worker_id, kind))
        if runner is not None:
            runner.count(self._clock())
            runner.is_busy = False

    def forget(self, worker_id: str) -> None:
        """Delete the data of a worker."""
        self._runners = {key: each for key, each in self._runners.items() if key[0] != worker_id}

    def look(self) -> dict[str, Pace]:
        """Close finished windows; return the paces whose ``is_straggler`` changed, by worker id."""
        now, changed = self._clock(), {}
        for (worker_id, kind), runner in self._runners.items():
            runner.count(now)
            if runner.busy_s < self._window_s / 2:
                continue
            was_straggler = runner.pace is not None and runner.pace.is_straggler
            runner.pace = self._judge(worker_id, kind, runner, was_straggler)
            runner.busy_s, runner.amount = 0.0, 0
            if runner.pace.is_straggler != was_straggler:
                changed[worker_id] = runner.pace
        return changed

    def paces(self) -> dict[str, Pace]:
        """Return the pace of each worker that has a task or had one recently, by worker id."""
        now = self._clock()
        return {
            worker_id: runner.pace
            for (worker_id, _), runner in self._runners.items()
            if runner.pace is not None and (runner.is_busy or now - runner.since < self._window_s)
        }

    def _judge(self, worker_id: str, kind: str, runner: _Runner, is_straggler: bool) -> Pace:
        per_s, paces = runner.amount / runner.busy_s, self.paces()
        paces.pop(worker_id, None)
        others = [pace.per_s for pace in paces.values() if pace.kind == kind]
        if not others or not (median := statistics.median(others)):
            return Pace(kind, per_s, None, is_straggler)
        relative = per_s / median
        runner.slow_windows = runner.slow_windows + 1 if relative * self._factor < 1 else 0
        if runner.slow_windows >= SLOW_WINDOWS:
            is_straggler = True
        elif relative * math.sqrt(self._factor) > 1:
            is_straggler = False
        return Pace(kind, per_s, relative, is_straggler)
