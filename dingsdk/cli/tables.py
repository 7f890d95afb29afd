"""Tables on the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def show_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows; the last column is wrapped where the console is too narrow."""
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    count = len(headings) or max(map(len, rows), default=0)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(headings))
    for index in range(count):
        heading = headings[index] if headings else ""
        table.add_column(heading, no_wrap=index < count - 1)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        # A pipe has no width; rich would cut the lines at 80.
        console = Console(width=160)
    console.print(table, markup=False)
