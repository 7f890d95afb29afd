"""How fast each worker is, compared with the other workers of its kind."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dingsdk.worker.coordinator.tasks import TaskState

LOOKS = 100
"""Looks at the tasks in the time of a window, as the dispatcher calls more often."""
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
    """A worker's last task of a kind, its current window, and the pace of its last window."""

    task: TaskState | None = None
    total: int = 0  # progress of the task
    since: float = 0.0
    busy_s: float = 0.0
    amount: int = 0
    slow_windows: int = 0
    pace: Pace | None = None

    def count(self, task: TaskState, now: float) -> None:
        if self.task is not task:
            self.task, self.total, self.since = task, 0, task.began_at
        self.busy_s += now - self.since
        self.amount += max(0, task.progress - self.total)
        self.total, self.since = task.progress, now


class PaceBoard:
    """Keeps the pace of each worker. The caller locks.

    A worker's window ends when it was busy for half of ``window_s``; short tasks add up. A worker
    becomes a straggler after ``SLOW_WINDOWS`` windows in a row in which it was more than ``factor``
    times slower than the median of the others. It stops being one after a window in which it was
    less than ``sqrt(factor)`` times slower, so that a worker near the limit does not alternate.
    A worker is forgotten after ``window_s`` without a task.

    Args:
        factor: How many times slower a straggler is, > 1.
        window_s: Seconds over which paces are compared, > 0.
    """

    def __init__(self, factor: float, window_s: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._window_s = window_s
        self._clock = clock
        self._look_at = -math.inf
        self._runners: dict[tuple[str, int, str], _Runner] = {}

    def look(self, tasks: Iterable[TaskState]) -> dict[str, Pace]:
        """Count the progress of running tasks, and close finished windows; call this often.

        Returns:
            The paces whose ``is_straggler`` changed, by worker id.
        """
        now, changed = self._clock(), dict[str, Pace]()
        if now < self._look_at:
            return changed
        self._look_at = now + self._window_s / LOOKS
        for task in tasks:
            if task.worker is not None and task.began_at < math.inf:
                key = (task.worker.worker_id, task.worker.incarnation, task.kind)
                self._runners.setdefault(key, _Runner()).count(task, now)
        runners = self._runners.items()
        self._runners = {key: each for key, each in runners if now - each.since < self._window_s}
        for (worker_id, _, kind), runner in self._runners.items():
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
        runners = self._runners.items()
        return {name: each.pace for (name, *_), each in runners if each.pace is not None}

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
