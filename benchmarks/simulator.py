"""How many seconds a simulated run has in a second of CPU time: 4 collectors, 1 learner.

Each sends a message a second; all checks are on. ``python benchmarks/simulator.py``
"""

from __future__ import annotations

import logging
import sys
import time

from dingsdk_flask_fs.simulated import SimulatedFlaskFS
from dingsdk_in_memory.simulated import SimulatedInMemory

from dingsdk.testing.simulation import Setting, Simulation

SECONDS = 600.0
REPEATS = 5
LEAST = 1000.0
"""Simulated seconds a second that are held, for the faster transport."""


def rate(transport: type) -> float:
    """Return simulated seconds a second of CPU time."""
    made = Simulation(1, transport=transport, faults=[], setting=Setting(), duration_s=SECONDS)
    began = time.process_time()
    made.run()
    return made.world.now / (time.process_time() - began)


def main() -> None:
    """Print the rates."""
    logging.disable()
    for transport in (SimulatedInMemory, SimulatedFlaskFS):
        rates = sorted(rate(transport) for _ in range(REPEATS))
        best, median = rates[-1], rates[len(rates) // 2]
        line = f"{transport.__name__:18} best {best:7,.0f}, median {median:7,.0f}"
        sys.stdout.write(f"{line} simulated seconds a second\n")
    sys.stdout.write(f"to hold: {LEAST:,.0f}, on a machine that does nothing else\n")


if __name__ == "__main__":
    main()
