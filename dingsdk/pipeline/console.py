"""The display of a run on the console, as ``dingsdk train`` shows it."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dingsdk.pipeline.context import Evaluation, Mode, RunContext, RunStatus
from dingsdk.pipeline.output import give_up
from dingsdk.worker.collector.episode_numbers import in_words

LINE_S = 2.0
"""Shortest time between two lines of the progress if the output is not a terminal."""


class RunConsole(Console):
    """A console without errors: if it cannot write, it is quiet, and the run continues."""

    def __exit__(self, *exc_info: Any) -> None:
        # All output of rich is written at the end of such a block.
        try:
            super().__exit__(*exc_info)
        except (OSError, ValueError) as error:  # ValueError: no such character in the encoding
            self._give_up(error)

    def on_broken_pipe(self) -> None:
        """Do not raise SystemExit, as rich does."""
        self._give_up(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def _give_up(self, error: Exception) -> None:
        if not self.quiet:
            self.quiet = True
            give_up(self.file, error)


class ConsoleProgress:
    """Shows a run on a console: one table on a terminal, else lines.

    Args:
        goal: The return that ends the run.
        clock: Measures the time before the first env step, when the elapsed time of the run is 0.
    """

    def __init__(
        self, console: Console, goal: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._goal = goal
        self._clock = clock
        self._began_at = clock()
        self._live: Live | None = None
        self._printed: RunStatus | None = None
        self._line_at = self._began_at

    def show(self, status: RunStatus, columns: Mapping[str, Any], *, is_over: bool = False) -> None:
        """Show a snapshot; ``columns`` are the values of plugins."""
        parts = _parts(status, columns, is_over)
        if self._console.is_terminal:
            table = self._table(status, parts)
            if self._live is None:
                # Without a refresh thread of rich: the table is drawn only here.
                self._live = Live(table, console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(table, refresh=not is_over)
            if is_over:
                self._live.stop()  # draws it once more
        # The status does not change while the parts of the run are closed.
        elif status != self._printed and (is_over or self._clock() - self._line_at >= LINE_S):
            self._printed, self._line_at = status, self._clock()
            line = f"[{self._time(status.elapsed_s)}] " + ", ".join(parts)
            line += f"; held up: {status.held_up_by}" if status.held_up_by else ""
            self._console.print(line, highlight=False, markup=False)

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

    def _time(self, elapsed_s: float) -> str:
        """Return the time since the first env step; before that step, the time since the start."""
        if elapsed_s > 0:
            return f"{elapsed_s:6.1f} s"
        return f"starting, {self._clock() - self._began_at:.1f} s"

    def _table(self, status: RunStatus, parts: list[str]) -> Table | Group:
        cells = [self._time(status.elapsed_s).lstrip(), f"goal {self._goal:g}", *parts]
        table = Table.grid(padding=(0, 4))
        for first in range(0, len(cells), 2):
            # Text objects, not markup: printing a line without markup redraws the table without it.
            table.add_row(*map(Text, cells[first : first + 2]))
        if status.held_up_by:
            return Group(table, Text(f"held up: {status.held_up_by}", "yellow"))
        return table


def console_progress(context: RunContext, mode: Mode) -> ConsoleProgress:
    """Print a line that announces a run; return the display of its progress."""
    console = RunConsole(soft_wrap=True)
    cfg, goal = context.cfg, ""
    if math.isfinite(cfg.env.stop_value):
        goal = f", until a mean return of {cfg.env.stop_value:g}"
    console.print(
        f"training {cfg.policy.type} on {context.task}, {mode}, seed {cfg.seed}{goal}; "
        f"run folder {context.run_dir}",
        highlight=False,
        markup=False,
    )
    return ConsoleProgress(console, cfg.env.stop_value)


def _parts(status: RunStatus, columns: Mapping[str, Any], is_over: bool) -> list[str]:
    """Return the facts that are known; each says what it is."""
    left_s = status.left_s
    has_steps = status.env_steps or not status.train_iter  # a run on a data set takes none
    parts = [
        f"{status.env_steps:,} env steps ({status.env_steps_per_s:,.0f}/s)" if has_steps else "",
        f"{status.train_iter:,} iterations ({status.updates_per_s:,.0f}/s)",
        f"return {_number(status.last_return)} (best {_number(status.best_return)})",
        *in_words(status.numbers),
        *(f"training {each}" for each in in_words(status.training_numbers)),
        f"loss {status.loss:.4g}" if status.loss is not None else "",
        _exploration(status),
        f"buffer {status.buffer_fill:,}/{status.buffer_capacity:,}",
        f"policy v{status.train_iter}{_lag(status)}",
        workers_in_words(status.workers),
        _last_phase(status, is_over) or ("" if left_s is None else f"{_duration(left_s)} left"),
        *(f"{name} {_value(value)}" for name, value in columns.items()),
    ]
    return [part for part in parts if part]


def _env_steps(evaluation: Evaluation) -> str:
    """Return the env steps before an evaluation; empty in a run on a data set, which takes none."""
    has_steps = evaluation.env_steps or not evaluation.train_iter
    return f"{evaluation.env_steps:,} env steps, " if has_steps else ""


def _last_phase(status: RunStatus, is_over: bool) -> str:
    """Return what a run does that has used all its env steps, or ""."""
    most, kinds = status.max_env_steps, {each.kind for each in status.tasks}
    if is_over or most is None or status.env_steps < most or "collector" in kinds:
        return ""
    if "learner" in kinds or not status.connected:  # serial mode has no tasks
        return "training on what was collected, then a last evaluation"
    return "last evaluation" if "evaluator" in kinds else ""


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
