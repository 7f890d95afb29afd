"""Time from the first env step to the stop value, serial against parallel, seed by seed.

    python benchmarks/time_to_solve.py --seeds 5

Both modes train the shipped CartPole example in this one process, in turns, so that a slow
minute of the machine meets both. Prints every run, the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from dingsdk.pipeline.train import train

MODES = ("serial", "parallel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--config", default="cartpole-dqn")
    parser.add_argument("--transport", default="in_memory")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="A.B=C")
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    args = parser.parse_args()

    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                result = train(
                    args.config,
                    mode=mode,
                    transport=args.transport,
                    sets=args.sets,
                    seed=seed,
                    output=folder,
                )
            seconds[mode].append(result.elapsed_s if result.reached else float("inf"))
            rows.append(
                {
                    "seed": seed,
                    "mode": mode,
                    "reached": result.reached,
                    "elapsed_s": result.elapsed_s,
                    "env_steps": result.env_steps,
                    "train_iter": result.train_iter,
                }
            )
            sys.stdout.write(
                f"seed {seed} {mode:<8} {'solved' if result.reached else result.reason:<8} "
                f"{result.elapsed_s:7.1f} s {result.env_steps:>8,} env steps "
                f"{result.train_iter:>7,} iterations\n"
            )
            sys.stdout.flush()
    medians = {mode: statistics.median(seconds[mode]) for mode in MODES}
    ratio = medians["parallel"] / medians["serial"]
    sys.stdout.write(
        f"median: serial {medians['serial']:.1f} s, parallel {medians['parallel']:.1f} s, "
        f"ratio {ratio:.2f}\n"
    )
    if args.json is not None:
        args.json.write_text(json.dumps({"runs": rows, "medians": medians, "ratio": ratio}))


if __name__ == "__main__":
    main()
