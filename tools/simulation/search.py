"""Simulates many seeds in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tools.simulation.simulation import Simulation, SimulationError


class Searched(NamedTuple):
    """The result of a search over seeds.

    Attributes:
        seeds: Number of seeds that were run, up to the first that failed.
        error: The error of the seed that failed; None if all runs succeeded.
        simulated_s: Virtual seconds of all runs together.
        cpu_s: CPU time of all runs together.
    """

    seeds: int
    error: SimulationError | None
    simulated_s: float
    cpu_s: float


def simulate(seed: int, **given: Any) -> float:
    """Run a ``Simulation`` with these arguments; return its virtual seconds."""
    made = Simulation(seed, **given)
    made.run()
    return made.world.now


def first_failure(
    run: Callable[[int], float], seeds: Iterable[int], cpu_limit_s: float = math.inf
) -> Searched:
    """Run seeds in order until one fails.

    Args:
        run: Runs a seed and returns its virtual seconds, or raises ``SimulationError``.
        seeds: The seeds.
        cpu_limit_s: Stop when the runs have used this much CPU time.
    """
    began, count, error, simulated_s = time.process_time(), 0, None, 0.0
    for seed in seeds:
        count += 1
        try:
            simulated_s += run(seed)
        except SimulationError as raised:
            error = raised
            simulated_s += float(raised.facts["at"])
        if error is not None or time.process_time() - began > cpu_limit_s:
            break
    return Searched(count, error, simulated_s, time.process_time() - began)
