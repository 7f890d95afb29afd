"""Live progress of a run: one table on a terminal, plain lines when piped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from dingsdk.pipeline.context import Evaluation, RunStatus

TERMINAL_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 2.0


class Progress(Protocol):
    """Shows a run while the ``with`` block lasts."""

    def __enter__(self) -> Progress: ...
    def __exit__(self, *exc_info: Any) -> None: ...
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Show the result of an evaluation."""


class ConsoleProgress:
    """Shows a run on a rich console, from one thread that ``__exit__`` joins.

    Args:
        console: A ``rich.console.Console``; whether it is a terminal decides the form.
        status: Gives the newest snapshot; called from the progress thread.
        goal: The return that ends the run.
    """

    def __init__(self, console: Any, status: Callable[[], RunStatus], goal: float) -> None:
        self._console = console
        self._status = status
        self._goal = goal
        self._rate = _Rate()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._live: Any = None
        self._printed: RunStatus | None = None

    def __enter__(self) -> ConsoleProgress:
        if self._console.is_terminal:
            from rich.live import Live

            # No refresh thread of its own: this object's thread is the only one.
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
            self._live.update(self._render(), refresh=True)
            self._live.stop()
        else:
            self._print_line()

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Print one line for an evaluation; a terminal keeps it above the live table."""
        self._console.print(
            f"[{evaluation.elapsed_s:6.1f} s] evaluation: mean return {evaluation.mean:.1f} "
            f"({evaluation.min:.0f} to {evaluation.max:.0f}, {evaluation.episodes} episodes) "
            f"after {evaluation.env_steps:,} env steps, iteration {evaluation.train_iter:,}",
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

    def _print_line(self) -> None:
        status = self._status()
        if status != self._printed:  # it stands still while the parts of the run are closed
            self._printed = status
            self._console.print(self._line(status), highlight=False, markup=False)

    def _line(self, status: RunStatus) -> str:
        return (
            f"[{status.elapsed_s:6.1f} s] {status.env_steps:,} env steps "
            f"({self._rate.of(status):,.0f}/s), {status.train_iter:,} iterations, "
            f"return {_number(status.last_return)} (best {_number(status.best_return)}), "
            f"buffer {status.buffer_fill:,}/{status.buffer_capacity:,}, "
            f"policy v{status.policy_version}, {status.workers} workers"
            + (f"; held up: {status.held_up_by}" if status.held_up_by else "")
        )

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        status = self._status()
        table = Table.grid(padding=(0, 2))
        rows = (
            ("env steps", f"{status.env_steps:,}", "steps/s", f"{self._rate.of(status):,.0f}"),
            ("iterations", f"{status.train_iter:,}", "policy", f"v{status.policy_version}"),
            (
                "return",
                f"{_number(status.last_return)} (best {_number(status.best_return)})",
                "goal",
                f"{self._goal:g}",
            ),
            (
                "buffer",
                f"{status.buffer_fill:,}/{status.buffer_capacity:,}",
                "elapsed",
                f"{status.elapsed_s:.1f} s, {status.workers} workers",
            ),
        )
        for left, left_value, right, right_value in rows:
            # Texts, not markup: a line printed above the table without markup redraws it so.
            table.add_row(Text(left, "dim"), left_value, Text(right, "dim"), right_value)
        if status.held_up_by:
            return Group(table, Text(f"held up: {status.held_up_by}", "yellow"))
        return table


class _Rate:
    """Env steps per second between two snapshots at least half a second apart."""

    def __init__(self) -> None:
        self._steps = 0
        self._at_s = 0.0
        self._rate = 0.0

    def of(self, status: RunStatus) -> float:
        if status.env_steps_per_s is not None:
            return status.env_steps_per_s
        passed_s = status.elapsed_s - self._at_s
        if passed_s >= 0.4:
            self._rate = (status.env_steps - self._steps) / passed_s
            self._steps, self._at_s = status.env_steps, status.elapsed_s
        return self._rate


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
