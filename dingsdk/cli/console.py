"""The console that shows the progress of a run."""

from __future__ import annotations

import errno
import os
from typing import Any

from rich.console import Console

from dingsdk.cli.output import give_up


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
