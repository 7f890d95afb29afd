"""Let a parallel run train for a long time, and check whether its processes grow.

    make soak                                    30 minutes
    python -m tools.chaos.soak --seconds 300

Reads the private memory (bytes) and the open files of each process every few seconds. Exits with 1
if after the first minute a process grows by 1 MiB per minute or more, if its number of open files
grows, or if the run fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import click
import numpy as np
import psutil

from tools.chaos.__main__ import Arm, run

WARM_UP_S = 60.0
MOST_BYTES_A_MINUTE = 1 << 20
MOST_FILES_A_MINUTE = 0.5

Growth = dict[int, list[tuple[float, int, int]]]
"""By process: seconds since the start, bytes, open files."""


def growth_a_minute(points: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Return the growth of bytes and open files per minute, by linear regression."""
    seconds, sizes, files = np.array(points, float).T
    return tuple(float(np.polyfit(seconds, values, 1)[0]) * 60 for values in (sizes, files))


def main() -> int:
    """Train, and print the growth of each process."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    args = parser.parse_args()
    found: Growth = defaultdict(list)

    def look(elapsed_s: float, processes: list[psutil.Process]) -> None:
        if elapsed_s < WARM_UP_S:
            return
        for each in processes:
            with each.oneshot():
                found[each.pid].append((elapsed_s, each.memory_full_info().uss, each.num_fds()))

    with tempfile.TemporaryDirectory() as folder:
        arm: Arm = run(Path(folder), args.seconds, 0, 0, look)
    for pid, points in found.items():
        size, files = growth_a_minute(points)
        click.echo(
            f"process {pid}: {points[-1][1] / 2**20:.0f} MiB, {size / 2**20:+.2f} MiB a minute; "
            f"{points[-1][2]} open files, {files:+.2f} a minute"
        )
        if size >= MOST_BYTES_A_MINUTE or files >= MOST_FILES_A_MINUTE:
            arm.problems.append(f"process {pid} grows")
    for problem in arm.problems:
        click.echo(f"PROBLEM: {problem}")
    return int(bool(arm.problems) or not found)


if __name__ == "__main__":
    sys.exit(main())
