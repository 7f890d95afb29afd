"""Live progress of a run: one table on a terminal, plain lines when piped."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

from dingsdk.pipeline.context import Evaluation, RunStatus
from dingsdk.worker.collector.episode_numbers import in_words

TERMINAL_INTERVAL_S = 0.5
"""Interval at which the live table is drawn again."""
PLAIN_INTERVAL_S = 2.0
"""Interval at which a line is written if the output is not a terminal."""
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


class RunRates:
    """The rates of a run, from one snapshot to the next. Not thread-safe."""

    def __init__(self) -> None:
        self._env_steps = Rate()
        self._updates = Rate()

    def of(self, status: RunStatus) -> tuple[float, float, float | None]:
        """Return env steps per second, train iterations per second, and the remaining seconds.

        The remaining time is the time until the first limit is reached at these rates; None if
        there is no limit.
        """
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
        return steps_per_s, updates_per_s, min(left, default=None)


class ConsoleProgress:
    """Shows a run on a rich console, from a thread that ``__exit__`` joins.

    Args:
        console: A ``rich.console.Console``; a table is shown on a terminal, else lines are printed.
        status: Returns the newest snapshot; called in that thread.
        goal: The return that ends the run.
        columns: Returns the values that plugins show; called in that thread.
        clock: Measures the time before the first env step, when the elapsed time of the run is 0.
    """

    def __init__(
        self,
        console: Any,
        status: Callable[[], RunStatus],
        goal: float,
        columns: Callable[[], Mapping[str, Any]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._status = status
        self._goal = goal
        self._columns = columns
        self._clock = clock
        self._began_at = clock()
        self._rates = RunRates()
        self._done = threading.Event()
        run = partial(copy_context().run, self._run)  # the context knows the run
        self._thread = threading.Thread(target=run, name="progress", daemon=True)
        self._live: Any = None
        self._printed: RunStatus | None = None

    def __enter__(self) -> ConsoleProgress:
        if self._console.is_terminal:
            from rich.live import Live

            # Without a refresh thread of rich: only the thread of this object draws.
            self._live = Live(
                self._render(), console=self._console, auto_refresh=False, transient=False
            )
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)
        if self._live is not None:
            self._live.update(self._render(is_over=True))
            self._live.stop()  # draws it once more
        else:
            self._print_line(is_over=True)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line for an evaluation; a terminal keeps it above the live table."""
        of = "" if evaluation.player is None else f" of {evaluation.player}"
        against = "" if evaluation.opponent is None else f" against {evaluation.opponent}"
        numbers = "".join(f", {each}" for each in in_words(evaluation.number_means))
        self._console.print(
            f"[{self._time(evaluation.elapsed_s)}] evaluation{of}{against}: "
            f"mean return {evaluation.mean:.1f} "
            f"({evaluation.min:.0f} to {evaluation.max:.0f}, {evaluation.episodes} episodes)"
            f"{numbers} "
            f"after {_env_steps(evaluation)}iteration {evaluation.train_iter:,}",
            highlight=False,
            markup=False,
        )

    def _run(self) -> None:
        interval_s = TERMINAL_INTERVAL_S if self._live is not None else PLAIN_INTERVAL_S
        while not self._done.wait(interval_s):
            if self._live is not None:
                self._live.update(self._render(), refresh=True)
            else:
                self._print_line()

    def _print_line(self, *, is_over: bool = False) -> None:
        status = self._status()
        if status != self._printed:  # it does not change while the parts of the run are closed
            self._printed = status
            self._console.print(self._line(status, is_over), highlight=False, markup=False)

    def _line(self, status: RunStatus, is_over: bool) -> str:
        line = f"[{self._time(status.elapsed_s)}] " + ", ".join(self._parts(status, is_over))
        return line + (f"; held up: {status.held_up_by}" if status.held_up_by else "")

    def _parts(self, status: RunStatus, is_over: bool) -> list[str]:
        """Return the facts that are known; each says what it is."""
        steps_per_s, updates_per_s, left = self._rates.of(status)
        has_steps = status.env_steps or not status.train_iter  # a run on a data set takes none
        parts = [
            f"{status.env_steps:,} env steps ({steps_per_s:,.0f}/s)" if has_steps else "",
            f"{status.train_iter:,} iterations ({updates_per_s:,.0f}/s)",
            f"return {_number(status.last_return)} (best {_number(status.best_return)})",
            *in_words(status.numbers),
            *(f"training {each}" for each in in_words(status.training_numbers)),
            f"loss {status.loss:.4g}" if status.loss is not None else "",
            _exploration(status),
            f"buffer {status.buffer_fill:,}/{status.buffer_capacity:,}",
            f"policy v{status.train_iter}{_lag(status)}",
            workers_in_words(status.workers),
            _last_phase(status, is_over) or ("" if left is None else f"{_duration(left)} left"),
            *(f"{name} {_value(value)}" for name, value in self._columns().items()),
        ]
        return [part for part in parts if part]

    def _time(self, elapsed_s: float) -> str:
        """Return the time since the first env step; before that step, the time since the start."""
        if elapsed_s > 0:
            return f"{elapsed_s:6.1f} s"
        return f"starting, {self._clock() - self._began_at:.1f} s"

    def _render(self, *, is_over: bool = False) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        status = self._status()
        cells = [self._time(status.elapsed_s).lstrip(), f"goal {self._goal:g}"]
        cells += self._parts(status, is_over)
        table = Table.grid(padding=(0, 4))
        for first in range(0, len(cells), 2):
            # Text objects, not markup: printing a line without markup redraws the table without it.
            table.add_row(*map(Text, cells[first : first + 2]))
        if status.held_up_by:
            return Group(table, Text(f"held up: {status.held_up_by}", "yellow"))
        return table


def _env_steps(evaluation: Evaluation) -> str:
    """Return the env steps before an evaluation; empty in a run on a data set, which takes none."""
    has_steps = evaluation.env_steps or not evaluation.train_iter
    return f"{evaluation.env_steps:,} env steps, " if has_steps else ""


def _last_phase(status: RunStatus, is_over: bool) -> str:
    """Return the text for a run that has used all its env steps and still trains, else ""."""
    most = status.max_env_steps
    is_collected = most is not None and status.env_steps >= most
    if is_over or not is_collected:
        return ""
    return "training on what was collected, then a last evaluation"


def workers_in_words(count: int) -> str:
    """Return ``1 worker``, ``2 workers``."""
    return f"{count} worker{'s' if count != 1 else ''}"


def _exploration(status: RunStatus) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in status.exploration.items())


def _lag(status: RunStatus) -> str:
    return "" if status.policy_lag is None else f", lag {status.policy_lag['mean']:.1f}"


def _duration(seconds: float) -> str:
    """Return ``1 h 05 min``, ``2 min 30 s`` or ``12 s``."""
    whole = math.ceil(seconds)
    if whole >= 3600:
        return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
