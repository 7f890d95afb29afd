"""Compare the episode lengths of a run with kills with those of a run without kills.

    python -m tools.chaos.lengths
    python -m tools.chaos.lengths --seconds 60 --kills 6

The env draws the length of each episode from a heavy-tailed distribution, for any actions. If kills
lose long episodes more often than short ones, the lengths of the acknowledged episodes show it.
Exits with 1 if the Kolmogorov-Smirnov distance of the two runs is 0.05 or more, or if a run has
fewer than 5,000 episodes or has lost samples.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from tools.chaos.__main__ import report, run
from tools.chaos.counting import episode_lengths

SETS = ("env.env_id=tools.chaos.run:HeavyTailed-v0",)
LARGEST = 0.05
LEAST_EPISODES = 5_000


def distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest distance of the two distributions."""
    values = np.union1d(first, second)
    shares = [
        np.searchsorted(np.sort(each), values, "right") / len(each) for each in (first, second)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def main() -> int:
    """Run without and with kills, and print the distance."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="of each run")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lengths: list[list[int]] = []
    for name, kills in (("left alone", 0), ("under faults", args.kills)):
        with tempfile.TemporaryDirectory() as folder:
            arm = run(Path(folder), args.seconds, kills, args.seed, sets=SETS, step_s=0.001)
            report(name, arm)
            if arm.problems:
                return 1
            lengths.append(episode_lengths(Path(folder)))
        click.echo(f"  {len(lengths[-1]):,} episodes, the longest of {max(lengths[-1])} steps")
    found = distance(*lengths)
    click.echo(f"Kolmogorov-Smirnov distance {found:.4f}, {LARGEST} to stay under")
    return int(found >= LARGEST or min(map(len, lengths)) < LEAST_EPISODES)


if __name__ == "__main__":
    sys.exit(main())
