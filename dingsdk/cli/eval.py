"""``dingsdk eval``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dingsdk.cli.tables import show_table


@click.command("eval", short_help="Evaluate the policy of a run folder.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    metavar="best|latest|PATH",
    help="Which checkpoint of a run folder to evaluate; also a name in its folder ckpt, such as "
    "iteration_10.  [default: best]",
)
@click.option("--episodes", type=click.IntRange(min=1), help="Overrides env.n_evaluator_episode.")
@click.option("--seed", type=click.IntRange(min=0), help="Overrides the run's seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    run: Path, checkpoint: str | None, episodes: int | None, seed: int | None, as_json: bool
) -> None:
    """Play episodes with the policy of RUN, a run folder or a checkpoint."""
    from dingsdk.pipeline.evaluate import evaluate as play

    found = play(run, checkpoint=checkpoint, episodes=episodes, seed=seed)
    if as_json:
        names = ("train_iter", "mean", "std", "min", "max", "returns", "numbers")
        record = {name: getattr(found, name) for name in names}
        click.echo(json.dumps({"checkpoint": str(found.checkpoint), **record}))
        return
    # A count: the file iteration_0 is written after the first iteration.
    trained = f"{found.train_iter:,} iteration{'' if found.train_iter == 1 else 's'}"
    click.echo(f"{found.env_id}, {found.checkpoint}, trained for {trained}")
    figures = (found.mean, found.std, found.min, found.max)
    row = (str(len(found.returns)), *(f"{figure:.2f}" for figure in figures))
    show_table([row], ("episodes", "mean return", "std", "min", "max"))
    if found.numbers:
        numbers = [
            (name, *(f"{each[key]:.4g}" for key in ("mean", "min", "max")))
            for name, each in found.numbers.items()
        ]
        show_table(numbers, ("number", "mean", "min", "max"))
