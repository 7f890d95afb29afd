"""The measured operations on a full buffer: two of push and three of sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from _buffers import ours
from _buffers.floor import Floor
from _buffers.measure import Entrant, Pace, Report, ratio, take_turns
from _buffers.workloads import CHUNK, Workload

BATCH, SEQUENCES, STEPS = 256, 32, 64
FLOOR, OURS = "bare numpy", "dingsdk"


@dataclass(frozen=True, slots=True)
class Section:
    """One operation: the entrants, the rows it moves, and the goals.

    Args:
        rows: Rows that one operation moves.
        floor: Returns the operation on bare columns.
        ours: Returns the operation on a buffer of this package.
        goals: For each workload the least share of the floor's speed (with ``by_speed``), or the
            largest multiple of the floor's time.
        by_speed: Whether the goals are shares of the speed.
        peer_goal: Largest multiple of the best peer's time on the small rows.
    """

    rows: int
    floor: Callable[[Workload], Entrant]
    ours: Callable[[Workload], Entrant]
    goals: Mapping[str, float]
    by_speed: bool = False
    peer_goal: float | None = None


def _push_floor(load: Workload) -> Entrant:
    return Entrant(FLOOR, Floor(load).push, [(chunk,) for chunk in load.chunks()])


def _push(load: Workload) -> Entrant:
    buffer = ours.full(load, "naive")
    return Entrant(OURS, buffer.push, [(batch, 0) for batch in ours.batches_of(load)])


def _one_floor(load: Workload) -> Entrant:
    return Entrant(FLOOR, Floor(load).push_one, [(row,) for row in load.rows()])


def _one(load: Workload) -> Entrant:
    return Entrant(OURS, ours.full(load, "naive").push, [(row, 0) for row in load.rows()])


def _uniform_floor(load: Workload) -> Entrant:
    return Entrant(FLOOR, Floor(load).uniform, [(BATCH,)])


def _uniform(load: Workload) -> Entrant:
    return Entrant(OURS, ours.uniform(ours.full(load, "naive"), BATCH))


def _priority(load: Workload) -> Entrant:
    found = list(np.random.default_rng(1).random((64, BATCH)))
    run = ours.prioritized(ours.full(load, "advanced"), BATCH)
    return Entrant(OURS, run, [(priorities,) for priorities in found])


def _sequence_floor(load: Workload) -> Entrant:
    return Entrant(FLOOR, Floor(load).sequences, [(SEQUENCES, STEPS)])


def _sequence(load: Workload) -> Entrant:
    return Entrant(OURS, ours.sequences(ours.full(load, "sequence"), SEQUENCES, STEPS))


SECTIONS: dict[str, Section] = {
    "push": Section(CHUNK, _push_floor, _push, {"W1": 0.65, "W2": 0.9}, by_speed=True),
    "one": Section(1, _one_floor, _one, {"W1": 0.35, "W2": 0.8}, by_speed=True),
    "uniform": Section(BATCH, _uniform_floor, _uniform, {"W1": 1.4, "W2": 1.1}),
    # A prioritized sample with its update is compared with a uniform sample without an update.
    "priority": Section(BATCH, _uniform_floor, _priority, {"W2": 1.15}, peer_goal=0.65),
    "sequence": Section(SEQUENCES * STEPS, _sequence_floor, _sequence, {"W1": 1.5, "W2": 1.3}),
}


def operation(name: str, load: Workload, pace: Pace, with_peers: bool, report: Report) -> None:
    """Measure one section with one kind of rows."""
    section = SECTIONS[name]
    try:
        entrants = [section.floor(load), section.ours(load)]
    except ours.NotBuiltError as error:
        report.lacks(f"{name} {load.name}: not built ({error})")
        return
    # The goals for peers are for small rows only; with large rows each peer would need 2.8 GB.
    rivals: list[Entrant] = []
    if with_peers and load.name == "W1":
        from _buffers import peers  # imports torch, which some processes must not import

        rivals = peers.entrants(name, load, report)
    seconds = take_turns([*entrants, *rivals], pace)
    report.times(name, load.name, seconds, section.rows)
    limit = section.goals.get(load.name)
    if limit is not None and section.by_speed:
        share = ratio(seconds[FLOOR], seconds[OURS])
        report.goal(name, load.name, "share of the floor's speed", share, limit, at_least=True)
    elif limit is not None:
        report.goal(
            name, load.name, "time over the floor's", ratio(seconds[OURS], seconds[FLOOR]), limit
        )
    if section.peer_goal is None or load.name != "W1":
        return
    if not rivals:
        report.lacks(f"{name} {load.name}: no peer took part, and its goal is about the best one")
        return
    best = min(
        (rival.name for rival in rivals), key=lambda each: ratio(seconds[each], seconds[OURS])
    )
    share = ratio(seconds[OURS], seconds[best])
    report.goal(name, load.name, f"time over that of {best}", share, section.peer_goal)
