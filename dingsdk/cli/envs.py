"""``dingsdk check-env`` and ``dingsdk bench-env``."""

from __future__ import annotations

import click

from dingsdk.cli.options import env_argument, kwargs_option, read_kwargs, wrappers_option
from dingsdk.cli.tables import show_table


@click.command("check-env", short_help="Check whether workers can use an env.")
@env_argument
@kwargs_option
@wrappers_option
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of env and actions.")
def check_env(env: str, kwargs: str, wrappers: tuple[str, ...], seed: int) -> None:
    """Check ENV, a gymnasium id or module:Class, by using it.

    Checks its spaces, the results of reset and step, ends of episodes and seeds, and whether it
    does the same in each env manager, the default first. The exit code is 1 if workers cannot use
    it.
    """
    from dingsdk.envs.check import check_env as check

    found = check(env, read_kwargs(kwargs), wrappers, seed)
    show_table((each.state, each.name, each.detail) for each in found)
    if any(each.state == "problem" for each in found):
        raise click.exceptions.Exit(1)


@click.command("bench-env", short_help="Find the fastest env manager for an env on this machine.")
@env_argument
@kwargs_option
@wrappers_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=12.0,
    show_default=True,
    help="Approximate duration of the measurement.",
)
def bench_env(env: str, kwargs: str, wrappers: tuple[str, ...], seconds: float) -> None:
    """Measure which env manager steps ENV fastest here, and with how many envs.

    ENV is a gymnasium id or module:Class. Prints env steps per second with random actions, and the
    config lines for the fastest choice.
    """
    from dingsdk.envs.bench import bench_env as bench

    best, found = bench(env, read_kwargs(kwargs), wrappers, seconds)
    click.echo("env manager   envs    threads   env steps/s")
    for each in found:
        speed = f"{each.steps_per_s:13,.0f}" if each.steps_per_s else f"  {each.error}"
        click.echo(f"{each.manager:12} {each.env_num:5} {each.threads or '':>10} {speed}")
    click.echo(f"\nFor the config:\n\n{best.config}", nl=False)
