"""Standard output that cannot be written: a closed pipe or terminal, a full disk."""

from __future__ import annotations

import os
import sys

import click

from dingsdk.pipeline.output import give_up


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
