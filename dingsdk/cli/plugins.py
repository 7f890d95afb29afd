"""``dingsdk plugins``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import click

from dingsdk.cli.tables import show_table
from dingsdk.errors import DingError
from dingsdk.plugins import KINDS, PluginInfo, default_manager
from dingsdk.plugins.interfaces import check_interface


@click.command("plugins", short_help="List all types that configs can name.")
@click.option("--kind", type=click.Choice(KINDS), metavar="KIND", help="List only this kind.")
@click.option("--check", "is_check", is_flag=True, help="Import each, and check its interface.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(kind: str | None, is_check: bool, as_json: bool) -> None:
    """List every type by kind, with its distribution, version and state.

    Reads only metadata and imports no plugin. With --check, it imports all of them and checks their
    interfaces, as `dingsdk check` does first; the exit code is 1 if one fails.
    """
    rows = [row for row in default_manager().plugins() if kind in (None, row.kind)]
    if is_check:
        rows = [_imported(row) for row in rows]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show_table(
            (
                (
                    row.kind,
                    row.type_key,
                    row.distribution or row.provider,
                    row.version or "",
                    row.state,
                    row.detail,
                )
                for row in rows
            ),
            ("kind", "type", "distribution", "version", "state", "problem"),
        )
    if is_check and any(row.state == "broken" for row in rows):
        raise click.exceptions.Exit(1)


def _imported(row: PluginInfo) -> PluginInfo:
    """Import and check the plugin of a row; return the row with its new state.

    Rows whose state says that a run could not use them are returned unchanged.
    """
    if row.state not in ("available", "loaded", "broken"):
        return row
    try:
        import_plugin(row)
    except DingError as error:
        return replace(row, state="broken", detail=str(error))
    return replace(row, state="loaded", detail="")


def import_plugin(row: PluginInfo) -> None:
    """Import the plugin of a row, and check its interface; raises an error if one fails."""
    key = row.type_key if row.kind in KINDS else f"{row.type_key}@{row.distribution}"
    part = default_manager().import_part(row.kind, key)
    check_interface(row.kind, part)
