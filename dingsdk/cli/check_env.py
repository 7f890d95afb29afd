"""``dingsdk check-env``."""

from __future__ import annotations

import click

from dingsdk.cli.completion import env_argument, kwargs_option, wrappers_option


@click.command("check-env", short_help="Check an env against what workers rely on.")
@env_argument
@kwargs_option
@wrappers_option
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the env and the actions.")
def check_env(env: str, kwargs: str, wrappers: tuple[str, ...], seed: int) -> None:
    """Check ENV, a gymnasium id or module:Class, by using it.

    Its spaces, what reset and step return, ends of episodes, seeds, and whether it acts alike
    in an env manager and in a child process. Exits with 1 where workers cannot use it.
    """
    from rich.console import Console
    from rich.table import Table

    from dingsdk.cli.completion import read_kwargs
    from dingsdk.envs.check import check_env as check

    found = check(env, read_kwargs(kwargs), wrappers, seed)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for each in found:
        table.add_row(each.state, each.name, each.detail)
    console = Console()
    if not console.is_terminal:
        # A pipe has no width; rich would cut the lines at 80.
        console = Console(width=160)
    console.print(table, markup=False)
    if any(each.state == "problem" for each in found):
        raise click.exceptions.Exit(1)
