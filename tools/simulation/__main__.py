"""``python -m tools.simulation``: simulate many seeds of a transport on all cores."""

from __future__ import annotations

import functools
import logging
import pkgutil

import click

from tools.simulation import SeedSearch, Simulation, shrink, simulate


@click.command("python -m tools.simulation")
@click.argument("transport", metavar="MODULE:CLASS")
@click.option("--seeds", default=400, type=click.IntRange(1), show_default=True, help="How many.")
@click.option("--first", default=0, type=click.IntRange(0), show_default=True, help="First seed.")
@click.option("--processes", type=click.IntRange(1), help="How many; one a core if left out.")
def main(transport: str, seeds: int, first: int, processes: int | None) -> None:
    """Simulate runs of a transport, such as tools.simulation.flask_fs:SimulatedFlaskFS.

    Prints the first seed that fails, with the fewest faults that make it fail, and exits with 1.
    """
    try:
        made = pkgutil.resolve_name(transport)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{transport!r}: {error}", param_hint="MODULE:CLASS") from error
    logging.disable()
    with SeedSearch(processes) as search:
        run = functools.partial(simulate, transport=made)
        found = search.first_failure(run, range(first, first + seeds))
    click.echo(
        f"{found.seeds} seeds, {found.simulated_s:,.0f} simulated seconds in {found.wall_s:,.1f} s "
        f"with {search.processes} processes: {found.rate:,.0f} a second"
    )
    failure = found.error
    if failure is None:
        return
    click.echo(str(failure))
    seed = failure.facts["seed"]
    fewest = shrink(failure, functools.partial(Simulation, seed, transport=made))
    click.echo("fewest faults:" + "".join(f"\n  {fault}" for fault in fewest))
    raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
