"""Searches the defects of ``simulation_mutants`` with simulated runs; writes a docs page.

python -m tests.mutants.simulation_search            all defects
python -m tests.mutants.simulation_search policy     defects with this word in their name
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import click

from tests.mutants.simulation_mutants import DEFECTS, MUTANTS, Mutant
from tools.simulation import first_failure, simulate
from tools.simulation.flask_fs import SimulatedFlaskFS

MOST_SEEDS, MOST_S = 10_000, 300.0
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "simulated-defects.md"
HEAD = """\
# Defects that simulated runs find

Each row has a fault, and a defect that it reveals: a line of dingsdk that is broken on purpose.
[Simulated runs](../how-to/simulate-a-run.md) used the seeds 0, 1, 2 and so on until one broke a
promise. The slow tests check that each defect is found within 10,000 seeds and 300 s of CPU time;
they start with the seed in this table.
`python -m tests.mutants.simulation_search` writes this page.

| Fault | Defect | Seeds | CPU time, s |
| --- | --- | ---: | ---: |
"""


class Found(NamedTuple):
    """Number of seeds and seconds of CPU time until a defect was found."""

    seeds: int
    seconds: float


def search(mutant: Mutant, before: Found | None = None) -> Found:
    """Simulate seed after seed with a defect; raise AssertionError if no run fails.

    Args:
        mutant: The defect.
        before: Result of an earlier search; its seed is tried first.
    """
    run = functools.partial(simulate_with, mutant.name)
    first = [] if before is None else [before.seeds - 1]
    found = first_failure(run, chain(first, range(MOST_SEEDS)), MOST_S)
    if found.error is None:
        raise AssertionError(f"{mutant.name}: not found with {found.seeds} seeds")
    return Found(found.seeds, found.cpu_s)


def simulate_with(name: str, seed: int) -> float:
    """Simulate a run with the named defect; return its virtual seconds."""
    with next(each for each in MUTANTS if each.name == name).applied():
        return simulate(seed, transport=SimulatedFlaskFS)


def page(found: Mapping[str, Found]) -> str:
    """Return the text of the page; `found` maps names of defects to results."""
    rows = []
    for fault, mutants in DEFECTS.items():
        for each in mutants:
            figures = found.get(each.name)
            cells = " | " if figures is None else f"{figures.seeds} | {figures.seconds:.1f}"
            rows.append(f"| {fault} | {each.name} | {cells} |\n")
    return HEAD + "".join(rows)


def read(text: str) -> dict[str, Found]:
    """Return the results that a page contains."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[3].isdigit():
            found[cells[2]] = Found(int(cells[3]), float(cells[4]))
    return found


def main() -> int:
    """Search the defects and write the page."""
    logging.disable()
    is_any_left = False
    for mutant in MUTANTS:
        if not all(word in mutant.name for word in sys.argv[1:]):
            continue
        found = read(PAGE.read_text())
        found.pop(mutant.name, None)
        try:
            found[mutant.name] = search(mutant)
            click.echo(f"{mutant.name}: {found[mutant.name]}")
        except AssertionError as error:
            click.echo(str(error))
            is_any_left = True
        PAGE.write_text(page(found))
    return int(is_any_left)


if __name__ == "__main__":
    sys.exit(main())
