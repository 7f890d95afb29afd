"""Standard output that cannot be written, for a closed pipe or terminal: a run continues."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import IO

import click

_log = logging.getLogger(__name__)


def discard(stream: IO[str]) -> None:
    """Redirect a stream that cannot be written to, so that no later write or flush fails."""
    with contextlib.suppress(OSError, ValueError):  # not a file, or closed
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def give_up(stream: IO[str], error: Exception) -> None:
    """Discard the rest of a run's output, because a write failed; the run continues."""
    discard(stream)
    _log.warning("the output of the run is not shown any more: %s; the run continues", error)


def open_closed_streams() -> None:
    """Open stdout and stderr if they were closed at the start; writing to them is an error.

    Otherwise the next file that is opened would have their descriptor, and get their output.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Not as writable, so that a command that cannot show its result fails.
            descriptor = os.open(os.devnull, os.O_RDONLY)
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))


def say(text: str) -> None:
    """Print a text about a run; if it cannot be written, the run continues without output."""
    try:
        click.echo(text)
    except OSError as error:
        give_up(sys.stdout, error)
