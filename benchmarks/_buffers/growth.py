"""How the time of an operation grows with the capacity, for dingsdk and the floor."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from _buffers import ours
from _buffers.measure import Entrant, Pace, Report, ratio, say, take_turns
from _buffers.sections import FLOOR, OURS, SECTIONS, Section
from _buffers.workloads import small

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
Curve = list[tuple[int, float, float]]
"""Capacity, microseconds of the floor, microseconds of dingsdk."""


def growth(capacities: Sequence[int], pace: Pace, plot_file: Path | None, report: Report) -> None:
    """Print microseconds per operation on small rows (and the floor's); plot them if asked."""
    say("growth W1: us per operation (bare numpy), by capacity")
    say(" " * 12 + "".join(f"{capacity:>22,}" for capacity in capacities))
    curves: dict[str, Curve] = {}
    for name, section in SECTIONS.items():
        try:
            curves[name] = _curve(name, section, capacities, pace, report)
        except ours.NotBuiltError as error:
            report.lacks(f"growth of {name}: not built ({error})")
            continue
        cells = (f"{ours_us:.2f} ({floor_us:.2f})" for _, floor_us, ours_us in curves[name])
        say(f"  {name:<10}" + "".join(f"{cell:>22}" for cell in cells))
    if plot_file is not None:
        _plot(curves, plot_file)


def _curve(
    name: str, section: Section, capacities: Sequence[int], pace: Pace, report: Report
) -> Curve:
    # All capacities take turns, so that changes of the machine's load do not distort the curve.
    entrants: list[Entrant] = []
    for capacity in capacities:
        load = small(capacity)
        for who, entrant in ((FLOOR, section.floor(load)), (OURS, section.ours(load))):
            entrants.append(dataclasses.replace(entrant, name=f"{who} {capacity}"))
    seconds = take_turns(entrants, pace)
    curve: Curve = []
    for capacity in capacities:
        floor_s, ours_s = (seconds[f"{who} {capacity}"] for who in (FLOOR, OURS))
        floor_us, ours_us = (statistics.median(each) * 1e6 for each in (floor_s, ours_s))
        facts = {"us": ours_us, "floor_us": floor_us, "ratio": ratio(ours_s, floor_s)}
        report.figure("growth", "W1", name, capacity=capacity, **facts)
        curve.append((capacity, floor_us, ours_us))
    return curve


def _plot(curves: dict[str, Curve], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3.5), squeeze=False)
    for panel, (name, curve) in zip(panels[0], curves.items(), strict=True):
        capacities, floor_us, ours_us = zip(*curve, strict=True)
        panel.plot(capacities, floor_us, "o--", color="gray", label=FLOOR)
        panel.plot(capacities, ours_us, "o-", label=OURS)
        panel.set(xscale="log", title=name, xlabel="capacity in rows", ylabel="us per operation")
        panel.set_ylim(bottom=0)
        panel.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    say(f"  drawn in {file}")
