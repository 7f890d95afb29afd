"""``dingsdk check-env``."""

from __future__ import annotations

import click

from dingsdk.cli.completion import env_argument, kwargs_option, wrappers_option
from dingsdk.cli.tables import show_table


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
    from dingsdk.cli.completion import read_kwargs
    from dingsdk.envs.check import check_env as check

    found = check(env, read_kwargs(kwargs), wrappers, seed)
    show_table((each.state, each.name, each.detail) for each in found)
    if any(each.state == "problem" for each in found):
        raise click.exceptions.Exit(1)
