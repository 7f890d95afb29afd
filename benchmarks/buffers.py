"""Replay buffers compared with the floor and peers, in one process with one torch thread.

    python benchmarks/buffers.py                        # all sections
    python benchmarks/buffers.py --only uniform priority --peers
    python benchmarks/buffers.py --quick --json found.json
    python benchmarks/buffers.py --only growth --plot growth.png

Rows: W1, of CartPole (45 bytes, capacity 1,000,000), and W2, of an Atari game (56,461 bytes,
capacity 50,000). The floor is bare numpy columns; samples are torch tensors.

Sections:
    push      chunks of 64 rows, as columns.
    one       one transition, as a dict.
    uniform   256 rows as tensors.
    priority  256 rows by priority as tensors, and the update of their priorities; the floor is
              a uniform sample without an update.
    sequence  32 sequences of 64 steps as tensors.
    memory    resident bytes per row, plain and with shared observations stored once, each
              measured in a new process.
    keep      save_data and load_data of the small rows; the floor writes the same bytes, syncs
              and reads them back.
    growth    time per operation by capacity, 10,000 to 10,000,000 small rows.

Entrants take turns of some milliseconds. Ratios are medians over the rounds of turns, so that
other load affects all equally. Compare ratios, not absolute numbers. ``--peers`` adds
stable-baselines3, cpprb, tianshou and torchrl on small rows; see requirements-peers.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from _buffers.growth import CAPACITIES, growth
from _buffers.keeping import keep, memory
from _buffers.measure import Pace, Report, say
from _buffers.sections import SECTIONS, operation
from _buffers.workloads import large, small

NAMES = (*SECTIONS, "memory", "keep", "growth")
_PACKAGES = ("numpy", "torch", "stable-baselines3", "cpprb", "tianshou", "torchrl")


def run(args: argparse.Namespace) -> Report:
    """Run the selected sections."""
    report = Report()
    quick = args.quick
    pace = Pace(0.005, 7) if quick else Pace(0.02, 25)
    loads = (
        small(args.w1_capacity or (100_000 if quick else 1_000_000)),
        large(args.w2_capacity or (2_500 if quick else 50_000)),
    )
    most = args.growth_max or (100_000 if quick else CAPACITIES[-1])
    for name in args.only:
        for load in loads:
            if name in SECTIONS:
                operation(name, load, pace, args.peers, report)
            elif name == "memory":
                memory(load, report)
        if name == "keep":
            keep(loads[0], Pace(0.0, 3 if quick else 7), args.dir, report)
        elif name == "growth":
            capacities = [capacity for capacity in CAPACITIES if capacity <= most] or [most]
            growth(capacities, pace, args.plot, report)
    return report


def described(args: argparse.Namespace, report: Report) -> dict[str, Any]:
    """Return the report as JSON values, with a description of the machine."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": os.getloadavg()[0],
        "versions": versions,
        "quick": args.quick,
        "figures": report.figures,
        "goals": report.goals,
        "missing": report.missing,
    }


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="SECTION")
    parser.add_argument("--peers", action="store_true", help="also peers, on small rows")
    parser.add_argument("--quick", action="store_true", help="short turns and small buffers")
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed or missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw growth there")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="disk that keep writes to")
    parser.add_argument("--w1-capacity", type=int, metavar="ROWS")
    parser.add_argument("--w2-capacity", type=int, metavar="ROWS")
    parser.add_argument("--growth-max", type=int, metavar="ROWS")
    args = parser.parse_args()
    import torch  # not at the top: the processes that measure memory must not import it

    torch.set_num_threads(1)
    report = run(args)
    report.summary()
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.json:
        args.json.write_text(json.dumps(described(args, report), indent=1) + "\n")
    if args.strict and not report.is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
