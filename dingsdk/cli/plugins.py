"""``dingsdk plugins``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from dingsdk.plugins import KINDS, PluginManager, default_manager
from dingsdk.plugins.builtins import BUILTINS
from dingsdk.plugins.discovery import version_of

BUILT_IN = "built in"


@dataclass(frozen=True, slots=True)
class Row:
    """One type that configs can name, or that an installed plugin advertises."""

    kind: str
    type: str
    provider: str
    version: str
    state: str


@click.command("plugins", short_help="List what configs can name, and who provides it.")
@click.option("--kind", type=click.Choice(KINDS), help="List this kind alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(kind: str | None, as_json: bool) -> None:
    """List every type by kind, with its provider. Reads metadata; imports no plugin."""
    rows = list_rows(default_manager(), (kind,) if kind else KINDS)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "type", "provider", "version", "state"):
        table.add_column(heading, no_wrap=heading != "state")
    for row in rows:
        table.add_row(row.kind, row.type, row.provider, row.version, row.state)
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)


def list_rows(manager: PluginManager, kinds: tuple[str, ...]) -> list[Row]:
    """Return one row per type and provider, sorted by kind and type."""
    rows: list[Row] = []
    own = {(kind, key) for kind, key, _ in BUILTINS}
    version = version_of("dingsdk") or "unknown"
    for kind in kinds:
        found: list[Row] = []
        adverts = manager.adverts(kind)
        advertised = {advert.key for advert in adverts}
        for key in manager.registry(kind).query():
            if (kind, key) in own:
                found.append(Row(kind, key, "dingsdk", version, BUILT_IN))
            elif key not in advertised:
                entry = manager.registry(kind).entry(key)
                owner = entry.owner if entry else "unknown"
                found.append(Row(kind, key, owner, "", "registered"))
        for advert in adverts:
            others = [each for each in adverts if each.key == advert.key and each != advert]
            reason = manager.why_not(advert)
            if reason is not None:
                state = f"disabled: {reason}"
            elif (kind, advert.key) in own:
                state = f"hidden by the {BUILT_IN} type"
            elif others:
                state = f"ambiguous: also in {', '.join(each.distribution for each in others)}"
            else:
                state = "installed"
            found.append(Row(kind, advert.key, advert.distribution, advert.version, state))
        rows += sorted(found, key=lambda row: (row.type, row.provider))
    return rows
