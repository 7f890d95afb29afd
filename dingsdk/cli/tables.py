"""Tables on the console."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import click

_LEAST_WIDTH = 20
"""Least width to which the last column is wrapped; in a narrower one it is not wrapped."""


def show_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows in columns; on a console, the last column is wrapped to the console's width.

    Does not use rich, which takes 0.2 s for a table of 300 rows (2026-11, one core).
    """
    lines = [*([headings] if headings else []), *rows]
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    start = sum(widths) + 2 * len(widths)
    # A pipe has no width.
    width = shutil.get_terminal_size().columns - start if sys.stdout.isatty() else 0
    for number, (*cells, last) in enumerate(lines):
        left = "".join(f"{cell:{size}}  " for cell, size in zip(cells, widths, strict=True))
        last = " ".join(last.splitlines())
        wrapped = textwrap.wrap(last, width) if width >= _LEAST_WIDTH else [last]
        text = f"\n{'':{start}}".join(wrapped)
        line = f"{left}{text}".rstrip()
        click.echo(click.style(line, bold=True) if headings and number == 0 else line)
