"""``dingsdk replay``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("replay", short_help="Train a recorded run again, and compare the weights.")
@click.argument("run", type=click.Path(path_type=Path))
def replay(run: Path) -> int:
    """Train RUN again by its recorded schedule, and compare the final weights bit for bit.

    RUN is the folder of a run in parallel mode with system.record_schedule=true. It is not
    changed. The exit code is 0 if all weights are the same, and 1 if some differ.
    """
    from dingsdk.pipeline.replay import replay as train_again
    from dingsdk.pipeline.signals import exit_code

    found = train_again(run)
    if found.is_same:
        click.echo(f"the policy of iteration {found.iteration:,} is the same, bit for bit")
        return 0
    if found.reached < found.iteration:
        click.echo(f"the replay came to iteration {found.reached:,} of {found.iteration:,}")
    else:
        click.echo(
            f"the policy of iteration {found.iteration:,} differs in {', '.join(found.different)}"
        )
    return 1 if found.signal is None else exit_code(found.signal)
