"""``dingsdk config``: shows complete configs, checks them, prints their schema."""

from __future__ import annotations

import json
from typing import Any

import click

from dingsdk.cli.options import complete_config, mode_option, sets_option
from dingsdk.errors import DingError


@click.group("config", short_help="Show and check configs.")
def group() -> None:
    """Show and check configs.

    A CONFIG is a .yaml, .json or .py file, or the name of a shipped example.
    """


@group.command("show", short_help="Print a config with all its defaults.")
@click.argument("config", shell_complete=complete_config)
@mode_option
@sets_option
def show(config: str, mode: Any, sets: tuple[str, ...]) -> None:
    """Print CONFIG as YAML, with the default of every key that it does not set.

    The command imports plugins and the modules in import_names, but not the env. A comment in the
    first line names the keys whose values only the env can tell.
    """
    from dingsdk.config import dump_config
    from dingsdk.pipeline.env_probe import unknown_without_env
    from dingsdk.pipeline.train import compile_run

    cfg = compile_run(config, mode, sets=sets, makes_env=False)
    if unknown := unknown_without_env(cfg):
        click.echo(f"# only the env can tell: {', '.join(unknown)}")
    click.echo(dump_config(cfg), nl=False)


@group.command("validate", short_help="Check configs without starting a run.")
@click.argument(
    "configs", nargs=-1, required=True, metavar="CONFIG...", shell_complete=complete_config
)
@mode_option
@sets_option
def validate(configs: tuple[str, ...], mode: Any, sets: tuple[str, ...]) -> None:
    """Check each CONFIG as a run would, without starting it.

    The exit code is 2 if a config is not valid.
    """
    from dingsdk.pipeline.train import compile_run

    is_wrong = False
    for config in configs:
        try:
            compile_run(config, mode, sets=sets)
        except DingError as error:
            if not error.is_user_mistake:
                raise
            is_wrong = True
            click.echo(f"{config}: {error}", err=True)
        else:
            click.echo(f"{config}: ok")
    if is_wrong:
        raise click.exceptions.Exit(2)


@group.command("schema", short_help="Print the JSON Schema of configs.")
@click.argument("config", required=False, shell_complete=complete_config)
@sets_option
def schema(config: str | None, sets: tuple[str, ...]) -> None:
    """Print the JSON Schema of configs.

    With CONFIG, the schema has the keys of the types that it names. Without CONFIG, it has those of
    all types that dingsdk itself provides.
    """
    from dingsdk.pipeline.json_schema import config_schema
    from dingsdk.pipeline.train import compile_run

    compiled = (
        None if config is None else compile_run(config, "parallel", sets=sets, makes_env=False)
    )
    click.echo(json.dumps(config_schema(compiled), indent=2))
