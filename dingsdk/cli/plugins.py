"""``dingsdk plugins``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from dingsdk.plugins import KINDS, default_manager


@click.command("plugins", short_help="List what configs can name, and who provides it.")
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help="List this kind alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(kind: str | None, as_json: bool) -> None:
    """List every type by kind, with its provider. Reads metadata; imports no plugin."""
    rows = [row for row in default_manager().plugins() if kind in (None, row.kind)]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "type", "provider", "version", "state"):
        table.add_column(heading, no_wrap=heading != "state")
    for row in rows:
        state = f"{row.state}: {row.detail}" if row.detail else row.state
        provider = row.distribution or row.provider
        table.add_row(row.kind, row.type_key, provider, row.version or "", state)
    console = Console()
    if not console.is_terminal:
        # A pipe has no width; rich would cut the lines at 80.
        console = Console(width=160)
    console.print(table, markup=False)
