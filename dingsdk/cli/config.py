"""``dingsdk config``: what configs may hold, and what one config is when it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from dingsdk.cli.completion import complete_config, sets_option
from dingsdk.errors import DingError

mode_option = click.option(
    "--mode",
    type=click.Choice(["serial", "parallel"]),
    default="serial",
    show_default=True,
    help="The mode to complete the config for.",
)


@click.group("config", short_help="Show, compare and check configs.")
def group() -> None:
    """Show, compare and check configs.

    A CONFIG is a .yaml, .json or .py file, or the name of a shipped example.
    """


@group.command("show", short_help="Print a config with everything that it leaves out.")
@click.argument("config", shell_complete=complete_config)
@mode_option
@sets_option
def show(config: str, mode: Any, sets: tuple[str, ...]) -> None:
    """Print CONFIG as YAML, with the defaults of every key that it leaves out."""
    from dingsdk.config import dump_config
    from dingsdk.pipeline.train import compile_run

    click.echo(dump_config(compile_run(config, mode, sets=sets)), nl=False)


@group.command("diff", short_help="Compare two configs, key by key.")
@click.argument("one", shell_complete=complete_config)
@click.argument("other", shell_complete=complete_config)
@mode_option
def diff(one: str, other: str, mode: Any) -> None:
    """Print each key that ONE and OTHER, with their defaults, have different values for.

    Exits with 1 where there is a difference.
    """
    from dingsdk.config import to_plain
    from dingsdk.pipeline.train import compile_run

    left, right = (to_plain(compile_run(each, mode)) for each in (one, other))
    found = list(_differences(left, right))
    for path, was, now in found:
        click.echo(f"{path}: {was} | {now}")
    if found:
        raise click.exceptions.Exit(1)


_ABSENT = object()


def _differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(one.get(key, _ABSENT), other.get(key, _ABSENT), inner)
    elif type(one) is not type(other) or one != other:
        yield path, _shown(one), _shown(other)


def _shown(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


@group.command("validate", short_help="Check configs, and start nothing.")
@click.argument(
    "configs", nargs=-1, required=True, metavar="CONFIG...", shell_complete=complete_config
)
@mode_option
@sets_option
def validate(configs: tuple[str, ...], mode: Any, sets: tuple[str, ...]) -> None:
    """Check each CONFIG as a run would, and start nothing.

    Exits with 2 where one cannot work.
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

    With CONFIG parts have the keys of the types that it names. Without one they have those of any
    type that dingsdk itself provides.
    """
    from dingsdk.pipeline.json_schema import config_schema
    from dingsdk.pipeline.train import compile_run

    compiled = None if config is None else compile_run(config, "parallel", sets=sets)
    click.echo(json.dumps(config_schema(compiled), indent=2))
