"""``dingsdk bench-env``."""

from __future__ import annotations

import click

from dingsdk.cli.completion import env_argument, kwargs_option, wrappers_option


@click.command("bench-env", short_help="Find the fastest env manager for an env on this machine.")
@env_argument
@kwargs_option
@wrappers_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=12.0,
    show_default=True,
    help="About how long to measure.",
)
def bench_env(env: str, kwargs: str, wrappers: tuple[str, ...], seconds: float) -> None:
    """Measure which env manager steps ENV fastest here, and with how many envs.

    ENV is a gymnasium id or module:Class. Prints env steps a second with random actions, and the
    config lines of the fastest choice.
    """
    from dingsdk.cli.completion import read_kwargs
    from dingsdk.envs.bench import bench_env as bench

    best, found = bench(env, read_kwargs(kwargs), wrappers, seconds)
    click.echo("env manager   envs   env steps/s")
    for each in found:
        speed = f"{each.steps_per_s:13,.0f}" if each.steps_per_s else f"  {each.error}"
        click.echo(f"{each.manager:12} {each.env_num:5} {speed}")
    click.echo(f"\nFor the config:\n\n{best.config}", nl=False)
