"""Measures entrants in turns in one process, and reports the results."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Entrant:
    """An operation and its arguments: each call uses the next tuple."""

    name: str
    run: Callable[..., object]
    arguments: Sequence[tuple[Any, ...]] = ((),)


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration of a turn and the number of turns."""

    turn_s: float
    turns: int


def take_turns(entrants: Sequence[Entrant], pace: Pace) -> dict[str, list[float]]:
    """Return seconds per operation of each entrant, one figure per turn.

    Each entrant has one turn per round, and each round begins with the next entrant. Other load on
    the machine that lasts longer than a turn affects all, so ratios are taken within a round.
    """
    counts = {entrant.name: _operations(entrant, pace.turn_s) for entrant in entrants}
    seconds: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    for turn in range(pace.turns):
        first = turn % len(entrants)
        for entrant in (*entrants[first:], *entrants[:first]):
            count = counts[entrant.name]
            seconds[entrant.name].append(_run(entrant, count) / count)
    return seconds


def ratio(seconds: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over the rounds of (seconds / base)."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))


def _operations(entrant: Entrant, turn_s: float) -> int:
    """Return the number of operations per turn; also warms caches and compiled code."""
    _run(entrant, 2)
    count = 1
    while True:
        took = _run(entrant, count)
        if took > turn_s / 4:
            return max(1, round(count * turn_s / took))
        count *= 4


def _run(entrant: Entrant, count: int) -> float:
    run = entrant.run
    arguments = itertools.islice(itertools.cycle(entrant.arguments), count)
    began = time.perf_counter()
    for each in arguments:
        run(*each)
    return time.perf_counter() - began


@dataclass(slots=True)
class Report:
    """Prints figures and goals immediately, and stores them for ``--json``."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def figure(self, section: str, load: str, name: str, **facts: Any) -> None:
        self.figures.append({"section": section, "load": load, "name": name, **facts})

    def times(
        self, section: str, load: str, seconds: Mapping[str, Sequence[float]], rows: int
    ) -> None:
        """Print one line per entrant, with its ratio to the first entrant."""
        base = next(iter(seconds.values()))
        say(f"{section} {load}")
        for name, found in seconds.items():
            median, share = statistics.median(found), ratio(found, base)
            us, least_us = median * 1e6, min(found) * 1e6
            self.figure(section, load, name, us=us, least_us=least_us, ratio=share, rows=rows)
            say(
                f"  {name:<18} {us:12.2f} us (least {least_us:12.2f}) "
                f"{rows / median:12,.0f} rows/s   takes {share:7.2f} x"
            )

    def goal(
        self, section: str, load: str, what: str, found: float, limit: float, at_least: bool = False
    ) -> None:
        """Print and store a goal: ``found`` must be at most (or at least) ``limit``."""
        found = float(found)  # of numpy, it could not be written as JSON
        passed = found >= limit if at_least else found <= limit
        self.goals.append(
            {"section": section, "load": load, "what": what, "found": found, "limit": limit}
            | {"at_least": at_least, "passed": passed}
        )
        sign = ">=" if at_least else "<="
        say(f"  {'pass' if passed else 'FAIL'}: {what} is {found:.2f}, goal {sign} {limit:g}")

    def lacks(self, what: str) -> None:
        """Print and store a line on a figure that could not be measured, and why."""
        if what not in self.missing:
            self.missing.append(what)
            say(f"  missing: {what}")

    @property
    def is_met(self) -> bool:
        """Whether all goals were measured and met."""
        return not self.missing and all(goal["passed"] for goal in self.goals)

    def summary(self) -> None:
        """Print how many goals were met, and list those that were not."""
        failed = [goal for goal in self.goals if not goal["passed"]]
        say(f"{len(self.goals) - len(failed)} of {len(self.goals)} goals met")
        for goal in failed:
            say(
                f"  FAIL {goal['section']} {goal['load']}: {goal['what']} is "
                f"{goal['found']:.2f}, goal {goal['limit']:g}"
            )
        for what in self.missing:
            say(f"  missing: {what}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
