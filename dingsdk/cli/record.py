"""``dingsdk record``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("record", short_help="Record episodes of the policy of a run folder.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--episodes", type=click.IntRange(min=1), required=True, help="How many episodes to play."
)
@click.option(
    "--to",
    "target",
    metavar="FILE|SCHEME:NAME",
    required=True,
    help="A file, *.npz or *.h5, or a data set of a plugin, such as minari:NAME.",
)
@click.option(
    "--checkpoint",
    metavar="best|latest|PATH",
    help="Which checkpoint of a run folder plays; also a name in its folder ckpt, such as "
    "iteration_10.  [default: best]",
)
@click.option("--seed", type=click.IntRange(min=0), help="Overrides the run's seed.")
@click.option("--explore", is_flag=True, help="Explore as the collectors did at the checkpoint.")
@click.option("--overwrite", is_flag=True, help="Replace what is at the target.")
def record(
    run: Path,
    episodes: int,
    target: str,
    checkpoint: str | None,
    seed: int | None,
    explore: bool,
    overwrite: bool,
) -> None:
    """Play episodes with the policy of RUN, a run folder or a checkpoint, and write them.

    The episodes are those that eval plays with the same seed.
    """
    from dingsdk.pipeline.evaluate import record as play

    found = play(
        run,
        episodes,
        target,
        checkpoint=checkpoint,
        seed=seed,
        explore=explore,
        overwrite=overwrite,
    )
    click.echo(
        f"{found.env_id}: {len(found.returns):,} episode{'' if episodes == 1 else 's'}, "
        f"{len(found.dataset):,} steps, mean return {found.mean:.2f}, written to {target}"
    )
