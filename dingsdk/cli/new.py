"""``dingsdk new``."""

from __future__ import annotations

from pathlib import Path

import click

from dingsdk.plugins.templates import TEMPLATES, new_plugin, next_steps


@click.group("new", short_help="Create a project.")
def group() -> None:
    """Create a project."""


@group.command("plugin", short_help="Write a complete package that provides a plugin.")
@click.argument("kind", type=click.Choice(list(TEMPLATES)), metavar="KIND")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Folder in which the package is created; default: the current one.",
)
def plugin(kind: str, name: str, into: Path) -> None:
    """Write a package that provides a plugin of KIND under the type NAME.

    The package has an implementation to change, an entry point, tests with the conformance kit, a
    config that uses it and a CI file. The folder is dingsdk-rl-NAME, the module dingsdk_NAME.
    """
    folder = new_plugin(kind, name, into)
    article = "an" if kind[0] in "aeiou" else "a"
    steps = "\n".join(f"  {step}" for step in next_steps(kind, name, str(folder)))
    click.echo(
        f"{folder} holds {article} {kind} that works; change it to what you need.\n\n{steps}"
    )


plugin.epilog = "KIND is one of: " + ", ".join(TEMPLATES) + "."
