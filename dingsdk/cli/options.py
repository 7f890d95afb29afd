"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem


def complete_config(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Propose config files and the shipped examples."""
    from dingsdk.config import EXAMPLES_DIR

    examples = sorted(path.stem for path in EXAMPLES_DIR.glob("*.yaml"))
    # Files first: click's script for bash drops the items before them.
    files = CompletionItem(incomplete, type="file")
    return [files, *(CompletionItem(name) for name in examples if name.startswith(incomplete))]


transport_option = click.option(
    "--transport",
    metavar="TYPE",
    help="Overrides system.transport.type.",
)
sets_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="A.B=C",
    help="Override one config value; may be repeated.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["serial", "parallel"]),
    default="serial",
    show_default=True,
    help="One thread, or coordinator, collectors and learner over a transport.",
)
seed_option = click.option(
    "--seed", type=int, help="Root of the seed tree; overrides the config's."
)
env_argument = click.argument("env", metavar="ENV")
kwargs_option = click.option(
    "--kwargs", default="{}", metavar="MAPPING", help="As env.kwargs, such as '{length: 5}'."
)
wrappers_option = click.option(
    "--wrapper",
    "wrappers",
    multiple=True,
    metavar="TYPE",
    help="As an entry of env.wrappers; may be repeated, innermost first.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")


def read_kwargs(text: str) -> dict[str, Any]:
    """Return the value of ``--kwargs``.

    Raises:
        ConfigError: the value is not a mapping.
    """
    from dingsdk.config import apply_set
    from dingsdk.errors import wrong_type

    found = apply_set({}, f"kwargs={text}")["kwargs"]
    if not isinstance(found, dict):
        raise wrong_type("--kwargs", "a mapping such as '{length: 5}'", text)
    return found


def given_of(context: click.Context, names: Iterable[str]) -> str | None:
    """Return the first of these arguments and options that the user typed, or None."""
    typed = ParameterSource.COMMANDLINE
    return next((name for name in names if context.get_parameter_source(name) == typed), None)
