"""The display of a run on the console, as ``dingsdk train`` shows it."""

from __future__ import annotations

import errno
import math
import os
from typing import Any

from rich.console import Console

from dingsdk.pipeline.context import Mode, RunContext
from dingsdk.pipeline.output import give_up
from dingsdk.pipeline.progress import ConsoleProgress
from dingsdk.plugins import ask


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
    return ConsoleProgress(
        console,
        lambda: context.status(),
        cfg.env.stop_value,
        lambda: ask().progress_columns(run_dir=context.run_dir),
    )
