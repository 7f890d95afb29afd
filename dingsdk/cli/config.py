"""``dingsdk config``: shows complete configs, compares and checks them, prints their schema."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import click

from dingsdk.cli.options import complete_config, mode_option, sets_option
from dingsdk.errors import ConfigError, DingError


@click.group("config", short_help="Show, compare and check configs.")
def group() -> None:
    """Show, compare and check configs.

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


@group.command("diff", short_help="Compare two configs, key by key.")
@click.argument("one", shell_complete=complete_config)
@click.argument("other", shell_complete=complete_config)
@mode_option
def diff(one: str, other: str, mode: Any) -> None:
    """Print the keys with different values in ONE and OTHER, defaults included.

    The exit code is 1 if there is a difference.
    """
    from dingsdk.config.plain import flatten, to_plain
    from dingsdk.pipeline.train import compile_run

    shown = []
    for config in (one, other):
        try:
            plain = to_plain(compile_run(config, mode))
        except ConfigError as error:
            raise ConfigError(f"{config}: {error}", **error.facts) from error
        values = flatten(plain).items()
        shown.append({path: json.dumps(value, ensure_ascii=False) for path, value in values})
    left, right = (defaultdict(lambda: "(absent)", each) for each in shown)
    found = [path for path in dict.fromkeys((*left, *right)) if left[path] != right[path]]
    for path in found:
        click.echo(f"{path}: {left[path]} | {right[path]}")
    if found:
        raise click.exceptions.Exit(1)


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
