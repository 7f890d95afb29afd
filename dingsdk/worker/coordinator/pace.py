"""How fast each worker gets on, against the others that do the same."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from dingsdk.errors import ConfigError
from dingsdk.plugins import observe

_log = logging.getLogger(__name__)

LOOKS = 3
"""Looks in a row that must find a worker slow."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one worker.

    Attributes:
        kind: What it does: ``collector``, ``evaluator`` or ``learner``.
        per_s: Env steps a second, of a learner iterations, while it has a task.
        relative: ``per_s`` over the median of the others of its kind; None without others.
        is_straggler: Whether it has been slower than they by the factor, for a while.
    """

    kind: str
    per_s: float
    relative: float | None
    is_straggler: bool


class PaceBoard:
    """Keeps the pace of workers. The caller locks.

    A pace is an average over about the last ``window_s`` seconds that the worker had a task, so
    that short tasks count as one long one. It is compared once it covers half of them.

    A worker straggles once ``LOOKS`` looks found it ``factor`` times as slow as the median of the
    others, and until it is better than the square root of that: one near the limit does not go
    back and forth.

    Args:
        factor: How many times as slow makes a straggler, > 1.
        window_s: Over how long paces are averaged, > 0; looks are ten times as often.
        clock: Monotonic seconds.

    Raises:
        ConfigError: one of them is out of range.
    """

    def __init__(self, factor: float, window_s: float, clock: Callable[[], float]) -> None:
        for key, value, least in (("factor", factor, 1.0), ("window_s", window_s, 0.0)):
            if not least < value < math.inf:
                path = f"system.coordinator.straggler_{key}"
                raise ConfigError(f"{path} must be > {least:g} and finite, not {value}", path=path)
        self._factor = factor
        self._window_s = window_s
        self._clock = clock
        self._runners: dict[tuple[str, str], _Runner] = {}
        self._look_at = clock()

    def start(self, worker_id: str, kind: str) -> None:
        """Note that a worker begins the work of a task."""
        now = self._clock()
        runner = self._runners.setdefault((worker_id, kind), _Runner(self._window_s, now))
        runner.resume(now)

    def note(self, worker_id: str, kind: str, total: int) -> None:
        """Note how far a worker is: the total since its task began."""
        runner = self._runners.get((worker_id, kind))
        if runner is not None:
            runner.advance(self._clock(), total)

    def end(self, worker_id: str, kind: str) -> None:
        """Note that its task is over."""
        runner = self._runners.get((worker_id, kind))
        if runner is not None:
            runner.rest(self._clock())

    def forget(self, worker_id: str) -> None:
        for key in [key for key in self._runners if key[0] == worker_id]:
            del self._runners[key]

    def look(self) -> list[str]:
        """Compare all workers, if it is time to; return the ids of those whose state changed."""
        now = self._clock()
        if now < self._look_at:
            return []
        self._look_at = now + self._window_s / 10
        changed = []
        for (worker_id, kind), relative in self._relatives(now).items():
            if self._runners[worker_id, kind].judge(relative, self._factor):
                changed.append(worker_id)
        return changed

    def paces(self) -> dict[str, Pace]:
        """Return the pace of each worker that has a task, or had one lately, by its id."""
        now = self._clock()
        relatives = self._relatives(now)
        return {
            key[0]: Pace(key[1], runner.per_s(now), relatives.get(key), runner.is_straggler)
            for key, runner in self._runners.items()
            if runner.is_current(now)
        }

    def _relatives(self, now: float) -> dict[tuple[str, str], float]:
        """Return pace over the median of the others, of all that can be compared."""
        rates = {
            key: runner.per_s(now)
            for key, runner in self._runners.items()
            if runner.is_current(now) and runner.is_settled(now)
        }
        found = {}
        for key, rate in rates.items():
            others = [each for peer, each in rates.items() if peer[1] == key[1] and peer != key]
            median = statistics.median(others) if others else 0.0
            if median:
                found[key] = rate / median
        return found


def announce(worker_id: str, pace: Pace) -> None:
    """Log that a worker is a straggler, or none any more, and tell the observers."""
    share = pace.relative or 0.0
    if pace.is_straggler:
        text = "%s %s is a straggler: %.3g per s, %.2g of the median of the others"
        _log.warning(text, pace.kind, worker_id, pace.per_s, share)
    else:
        _log.info("%s %s has caught up: %.3g per s", pace.kind, worker_id, pace.per_s)
    observe().pace_changed(worker_id=worker_id, relative_pace=share, is_straggler=pace.is_straggler)


class _Runner:
    """A worker at one kind of work. Time without a task does not count."""

    __slots__ = (
        "_amount",
        "_at",
        "_busy_s",
        "_is_busy",
        "_slow_looks",
        "_total",
        "_window_s",
        "is_straggler",
    )

    def __init__(self, window_s: float, now: float) -> None:
        self._window_s = window_s
        self._at = now
        self._busy_s = self._amount = 0.0
        self._total = self._slow_looks = 0
        self._is_busy = self.is_straggler = False

    def resume(self, now: float) -> None:
        self._at, self._total, self._is_busy = now, 0, True

    def advance(self, now: float, total: int) -> None:
        if self._is_busy:
            self._busy_s, self._amount, self._at = *self._state(now), now
            self._amount += max(0, total - self._total)
            self._total = max(self._total, total)

    def rest(self, now: float) -> None:
        self.advance(now, self._total)
        self._is_busy = False

    def is_current(self, now: float) -> bool:
        return self._is_busy or now - self._at < self._window_s

    def is_settled(self, now: float) -> bool:
        return self._state(now)[0] >= self._window_s / 2

    def per_s(self, now: float) -> float:
        busy_s, amount = self._state(now)
        covered_s = self._window_s * -math.expm1(-busy_s / self._window_s)
        return amount / covered_s if covered_s > 0 else 0.0

    def judge(self, relative: float, factor: float) -> bool:
        """Take note of a look; return whether it made the worker a straggler, or none any more."""
        was = self.is_straggler
        self._slow_looks = self._slow_looks + 1 if relative * factor < 1 else 0
        if self._slow_looks >= LOOKS:
            self.is_straggler = True
        elif relative * math.sqrt(factor) > 1:
            self.is_straggler = False
        return self.is_straggler != was

    def _state(self, now: float) -> tuple[float, float]:
        """Return the time with a task, and what was done in it, older work counting for less."""
        if not self._is_busy:
            return self._busy_s, self._amount
        passed_s = now - self._at
        return self._busy_s + passed_s, self._amount * math.exp(-passed_s / self._window_s)
