"""``dingsdk config``: what configs may hold."""

from __future__ import annotations

import json

import click

from dingsdk.cli.completion import complete_config, sets_option


@click.group("config", short_help="Show what configs may hold.")
def group() -> None:
    """Show what configs may hold."""


@group.command("schema", short_help="Print the JSON Schema of configs.")
@click.argument("config", required=False, shell_complete=complete_config)
@sets_option
def schema(config: str | None, sets: tuple[str, ...]) -> None:
    """Print the JSON Schema of configs.

    With CONFIG, a file or a shipped example, parts have the keys of the types that it names.
    Without one they have those of any type that dingsdk itself provides.
    """
    from dingsdk.pipeline.json_schema import config_schema
    from dingsdk.pipeline.train import compile_run

    compiled = None if config is None else compile_run(config, "parallel", sets=sets)
    click.echo(json.dumps(config_schema(compiled), indent=2))
