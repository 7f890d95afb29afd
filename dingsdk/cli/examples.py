"""``dingsdk examples``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command("examples", short_help="List the shipped examples.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def examples(as_json: bool) -> None:
    """List the shipped examples, which `dingsdk train NAME` trains.

    Shows which extra of dingsdk each one needs, and how to install missing extras.
    """
    from dingsdk.pipeline.examples import list_examples

    found = list_examples()
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    width = max(len(each.name) for each in found)
    for each in found:
        needs = ""
        if each.extra:
            state = "installed" if each.is_installed else f"not installed: {each.install}"
            needs = f" Extra {each.extra} ({state})."
        click.echo(f"{each.name:{width}}  {each.description}{needs}")
