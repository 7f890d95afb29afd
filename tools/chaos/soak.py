"""Let a parallel run train for a long time, and check whether its processes grow.

    make soak                                    30 minutes
    python -m tools.chaos.soak --seconds 300 --transport shared_memory --step-ms 0

Reads the private memory (bytes) and the open files of each process, and the size of the run's logs,
every few seconds. Exits with 1 if after the first minute a process grows by 1 MiB per minute or
more, if its number of open files grows, if the logs grow by 10 MB an hour or more, or if the run
fails.
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

from tools.chaos.__main__ import STEP_S, Arm, run

WARM_UP_S = 60.0
MOST_BYTES_A_MINUTE = 1 << 20
MOST_FILES_A_MINUTE = 0.5
MOST_LOG_BYTES_A_MINUTE = 10e6 / 60

Growth = dict[int, list[tuple[float, int, int]]]
"""By process: seconds since the start, bytes, open files."""


def growth_a_minute(points: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the growth of each value after the seconds, a minute, by linear regression."""
    seconds, *columns = np.array(points, float).T
    return tuple(float(np.polyfit(seconds, values, 1)[0]) * 60 for values in columns)


def log_bytes(folder: Path) -> int:
    """Return the size of the logs of a run, which is below the folder of ``tools.chaos``."""
    run_dir = folder / "disk" / "run"
    files = [*run_dir.glob("log/**/*"), *run_dir.glob("*.jsonl")]
    return sum(each.stat().st_size for each in files if each.is_file())


def main() -> int:
    """Train, and print the growth of each process."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--transport", default="flask_fs", help="between the processes")
    parser.add_argument("--step-ms", type=float, default=STEP_S * 1000, help="of an env step")
    args = parser.parse_args()
    found: Growth = defaultdict(list)
    logs: list[tuple[float, ...]] = []

    def look(elapsed_s: float, processes: list[psutil.Process]) -> None:
        if elapsed_s < WARM_UP_S:
            return
        for each in processes:
            with each.oneshot():
                found[each.pid].append((elapsed_s, each.memory_full_info().uss, each.num_fds()))
        logs.append((elapsed_s, log_bytes(folder)))

    sets = [f"system.transport.type={args.transport}"]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        arm: Arm = run(folder, args.seconds, 0, 0, look, sets, args.step_ms / 1000)
    click.echo(f"{arm.steps_per_s:,.0f} env steps/s")
    for pid, points in found.items():
        size, files = growth_a_minute(points)
        click.echo(
            f"process {pid}: {points[-1][1] / 2**20:.0f} MiB, {size / 2**20:+.2f} MiB a minute; "
            f"{points[-1][2]} open files, {files:+.2f} a minute"
        )
        if size >= MOST_BYTES_A_MINUTE or files >= MOST_FILES_A_MINUTE:
            arm.problems.append(f"process {pid} grows")
    if logs:
        (size,) = growth_a_minute(logs)
        click.echo(f"logs: {logs[-1][1] / 1e6:.1f} MB, {size * 60 / 1e6:+.1f} MB an hour")
        if size >= MOST_LOG_BYTES_A_MINUTE:
            arm.problems.append("the logs grow")
    for problem in arm.problems:
        click.echo(f"PROBLEM: {problem}")
    return int(bool(arm.problems) or not found)


if __name__ == "__main__":
    sys.exit(main())
