"""Time from the first env step to the stop value, serial against parallel, seed by seed.

    python benchmarks/time_to_solve.py --seeds 5
    python benchmarks/time_to_solve.py --seeds 5 --transports in_memory flask_fs

All contenders train the shipped CartPole example in this one run, in turns, so that a slow
minute of the machine meets each. Prints every run, the medians and their ratios to the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from dingsdk.pipeline.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", default="cartpole-dqn")
    parser.add_argument("--transports", nargs="+", default=["in_memory"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="A.B=C")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    args = parser.parse_args()

    seconds: dict[str, list[float]] = {}
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for contender in ("serial", *args.transports):
            row = solve(contender, args.config, seed, args.sets)
            rows.append(row)
            taken = row["elapsed_s"] if row["reached"] else float("inf")
            seconds.setdefault(contender, []).append(taken)
            sys.stdout.write(
                f"seed {seed} {contender:<10} {'solved' if row['reached'] else row['reason']:<8} "
                f"{row['elapsed_s']:7.1f} s {row['env_steps']:>8,} env steps "
                f"{row['train_iter']:>7,} iterations\n"
            )
            sys.stdout.flush()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, median in medians.items():
        ratios = ", ".join(f"{median / other:.2f} x {of}" for of, other in medians.items())
        sys.stdout.write(f"median {name:<10} {median:6.1f} s = {ratios}\n")
    if args.json is not None:
        args.json.write_text(json.dumps({"runs": rows, "medians": medians}))


def solve(contender: str, config: str, seed: int, sets: list[str]) -> dict[str, Any]:
    """Train once, serially or in parallel over the transport that ``contender`` names."""
    with tempfile.TemporaryDirectory() as folder:
        if contender == "serial":
            result = train(config, sets=sets, seed=seed, output=folder)
        else:
            result = train(
                config, mode="parallel", transport=contender, sets=sets, seed=seed, output=folder
            )
    return {
        "seed": seed,
        "contender": contender,
        "reached": result.reached,
        "reason": result.reason,
        "elapsed_s": result.elapsed_s,
        "env_steps": result.env_steps,
        "train_iter": result.train_iter,
    }


if __name__ == "__main__":
    main()
