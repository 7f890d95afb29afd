"""Simulates many seeds in order, on all cores."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from dingsdk.runtime.spawn import spawn_context
from tools.simulation.simulation import Simulation, SimulationError

RUN_TIMEOUT_S = 600.0
"""How long to wait for the run of one seed, which normally takes about a second."""


class Searched(NamedTuple):
    """The result of a search over seeds.

    Attributes:
        seeds: Number of seeds that were run, up to the first that failed.
        error: The error of the seed that failed; None if all runs succeeded.
        simulated_s: Virtual seconds of all runs together.
        cpu_s: CPU time of all runs together.
        wall_s: How long the search took.
    """

    seeds: int
    error: SimulationError | None
    simulated_s: float
    cpu_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        """Simulated seconds per second of the search."""
        return self.simulated_s / self.wall_s


def simulate(seed: int, **given: Any) -> float:
    """Run a ``Simulation`` with these arguments; return its virtual seconds."""
    made = Simulation(seed, **given)
    made.run()
    return made.world.now


class SeedSearch:
    """Runs seeds in several processes, and finds the same first failure as one process does.

    Args:
        processes: How many processes; None for one per core. With 1, seeds are run in this process.

    Example:
        ``SeedSearch().first_failure(partial(simulate, transport=SimulatedFlaskFS), range(400))``
        within ``with``.
    """

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or len(os.sched_getaffinity(0))
        self._pool: Any = None

    def __enter__(self) -> Self:
        if self.processes > 1:
            context = spawn_context("processes")
            self._pool = context.Pool(self.processes, logging.disable, (logging.CRITICAL,))
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()
            self._pool = None

    def first_failure(
        self,
        run: Callable[[int], float],
        seeds: Iterable[int],
        cpu_limit_s: float = math.inf,
    ) -> Searched:
        """Run seeds in order until one fails.

        Args:
            run: Runs a seed and returns its virtual seconds, or raises ``SimulationError``;
                other processes import it by name.
            seeds: The seeds, in the order in which to run them.
            cpu_limit_s: Stop when the runs have used this much CPU time.

        Raises:
            TimeoutError: a run did not end, or its process died.
        """
        began, timed = time.monotonic(), functools.partial(_timed, run)
        count, error, simulated_s, cpu_s = 0, None, 0.0, 0.0
        for error, virtual_s, used_s in self._results(timed, seeds):
            count, simulated_s, cpu_s = count + 1, simulated_s + virtual_s, cpu_s + used_s
            if error is not None or cpu_s > cpu_limit_s:
                break
        return Searched(count, error, simulated_s, cpu_s, time.monotonic() - began)

    def _results(self, run: Callable[[int], _Result], seeds: Iterable[int]) -> Iterable[_Result]:
        """Yield results in the order of the seeds."""
        if self._pool is None:
            yield from map(run, seeds)
            return
        rest, begun = iter(seeds), deque[tuple[int, Any]]()
        while True:
            for seed in itertools.islice(rest, 2 * self.processes - len(begun)):
                begun.append((seed, self._pool.apply_async(run, (seed,))))
            if not begun:
                return
            seed, result = begun.popleft()
            try:
                yield result.get(RUN_TIMEOUT_S)
            except multiprocessing.TimeoutError:
                text = f"the run of seed {seed} gave no result within {RUN_TIMEOUT_S:.0f} s"
                raise TimeoutError(text) from None


_Result = tuple[SimulationError | None, float, float]
"""The error of a run or None, its virtual seconds and its CPU time."""


def _timed(run: Callable[[int], float], seed: int) -> _Result:
    began = time.process_time()
    try:
        error, virtual_s = None, run(seed)
    except SimulationError as raised:
        error, virtual_s = raised, float(raised.facts["at"])
    return error, virtual_s, time.process_time() - began
