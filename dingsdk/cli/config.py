"""``dingsdk config``: what configs may hold."""

from __future__ import annotations

import json

import click


@click.group("config", short_help="Show what configs may hold.")
def config() -> None:
    """Show what configs may hold."""


@config.command("schema", short_help="Print the JSON Schema of configs.")
@click.argument("name", metavar="[CONFIG]", required=False)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="As for train.")
def schema(name: str | None, sets: tuple[str, ...]) -> None:
    """Print the JSON Schema of configs.

    With CONFIG, a file or a shipped example, parts have the keys of the types that it names.
    Without one they have those of any type that dingsdk itself provides.
    """
    from dingsdk.pipeline.json_schema import config_schema
    from dingsdk.pipeline.train import compile_run

    compiled = None if name is None else compile_run(name, "parallel", sets=sets)
    click.echo(json.dumps(config_schema(compiled), indent=2))
