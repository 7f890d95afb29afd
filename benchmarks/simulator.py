"""Simulated seconds per real second of simulated runs: 4 collectors, 1 learner.

Each sends one message per second; all checks are on. ``python benchmarks/simulator.py``

Measures the CPU time of one run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tools.simulation import Setting, Simulation
from tools.simulation.flask_fs import SimulatedFlaskFS
from tools.simulation.in_memory import SimulatedInMemory

LEAST = 1000.0
"""Goal in simulated seconds per second, with the faster transport."""


def rate(transport: type, seconds: float) -> float:
    """Return simulated seconds per second of CPU time."""
    made = Simulation(1, transport=transport, faults=[], setting=Setting(), duration_s=seconds)
    began = time.process_time()
    made.run()
    return made.world.now / (time.process_time() - began)


def say(transport: type, rates: list[float]) -> None:
    """Print the best and the median rate."""
    rates = sorted(rates)
    best, median = rates[-1], rates[len(rates) // 2]
    line = f"{transport.__name__:18} best {best:7,.0f}, median {median:7,.0f}"
    sys.stdout.write(f"{line} simulated seconds a second\n")


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of each simulated run")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    logging.disable()
    for transport in (SimulatedInMemory, SimulatedFlaskFS):
        say(transport, [rate(transport, args.seconds) for _ in range(args.repeats)])
    sys.stdout.write(f"to reach: {LEAST:,.0f}, on a machine that does nothing else\n")


if __name__ == "__main__":
    main()
