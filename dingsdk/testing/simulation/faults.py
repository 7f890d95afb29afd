"""What goes wrong in a simulation, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "kill", "stop", "hang", "slow", "jump", "cut", "late", "lost", "doubled", "repeat", "disk_full",
    "disk_slow", "disk_late", "lose_payload", "damage_payload", "swap_payload", "raise", "poison",
    "tear", "usurp", "conflict", "unlock", "damage_policy", "damage_checkpoint", "stray",
]  # fmt: skip
OF_WORKERS: tuple[Kind, ...] = (
    "kill", "stop", "hang", "slow", "jump", "cut", "late", "lost", "doubled", "repeat", "stray",
)  # fmt: skip
OF_DISK: tuple[Kind, ...] = (
    "disk_full", "disk_slow", "disk_late", "lose_payload", "damage_payload", "swap_payload",
    "damage_policy", "damage_checkpoint",
)  # fmt: skip
OF_NETWORK: tuple[Kind, ...] = ("cut", "late", "lost", "doubled")
OF_JOURNAL = [(kind, "coordinator") for kind in ("kill", "tear", "usurp", "unlock")]
"""Faults that only a coordinator with a journal survives, with their target."""
OF_COORDINATOR: tuple[Kind, ...] = ("stop", "jump", "kill", "tear", "usurp")


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One thing that goes wrong.

    Attributes:
        kind: What: a process is killed, or dies in the middle of one of its next writes
            (``tear``), is stopped (SIGSTOP), also while another coordinator is started in its
            place (``usurp``), hangs or is slow; its clock jumps forward; its
            connection is cut, or its messages are late, lost or doubled; it announces payloads
            repeatedly; it answers tasks that it does not have (``stray``); the disk is full,
            slow, or shows files late; a payload is deleted, damaged
            or replaced; the next policy or checkpoint is damaged. Some end the run: ``raise``, as
            the env of a worker raises, ``poison``, as every process of a worker dies of its task,
            ``conflict``, as a collector announces two payloads under one id, and ``unlock``, as
            the file that names the coordinator is deleted.
        at: When, seconds since the beginning.
        target: Name of the process; empty for the disk.
        for_s: How long. A process that was killed is started again after it.
        amount: How much: a share of the messages, seconds of delay or of a jump, a factor.
    """

    kind: Kind
    at: float
    target: str = ""
    for_s: float = 0.0
    amount: float = 0.0


def random_faults(chance: random.Random, workers: list[str], until: float) -> list[SimulatedFault]:
    """Return faults that begin in ``[0, until + 8)``, in the order of their beginning."""
    if chance.random() < 0.2:  # such runs are short
        kind: Kind = chance.choice(["raise", "poison", "conflict", "unlock"])
        target = "coordinator" if kind == "unlock" else chance.choice(workers)
        return [SimulatedFault(kind, round(chance.uniform(3, until), 3), target)]
    found = []
    if chance.random() < 0.4:
        found += _combined(chance, workers, round(chance.uniform(3, until), 3))
    for _ in range(chance.randint(0, 8)):
        place = chance.random()
        if place < 0.6:
            target, kinds = chance.choice(workers), OF_WORKERS
            if target.startswith("learner"):
                kinds = *kinds, "tear"
        elif place < 0.85:
            target, kinds = "", OF_DISK
        else:
            target, kinds = "coordinator", OF_COORDINATOR
        kind = chance.choice(kinds)
        amounts = {
            "slow": chance.uniform(2, 6),
            "jump": chance.choice([3.0, 60.0, 3600.0]),
            "late": chance.uniform(0.1, 3),
            "lost": chance.uniform(0.05, 0.5),
            "doubled": chance.uniform(0.1, 0.9),
            "repeat": chance.randint(1, 4),
            "disk_slow": chance.uniform(0.1, 1.5),
            "disk_late": chance.choice([0.3, 1.5]),
        }
        for_s = chance.choice([0.1, 1.0, 4.0, 8.0, 15.0, 25.0, 45.0])
        at, amount = chance.uniform(0, until), float(amounts.get(kind, 0.0))
        found.append(SimulatedFault(kind, round(at, 3), target, for_s, round(amount, 3)))
    return sorted(found, key=lambda fault: fault.at)


def _combined(chance: random.Random, workers: list[str], at: float) -> list[SimulatedFault]:
    """Return faults that do harm together, and meet by chance too rarely."""
    target = chance.choice(workers)
    collectors = {each for each in workers if each.startswith("collector")}
    kills = [SimulatedFault("kill", at + 6.5, each, 0.5) for each in sorted(collectors)]
    return chance.choice(
        [
            # A process that is replaced at once, its last words still on their way.
            [
                SimulatedFault("late", at - 2, target, 8.0, 3.0),
                SimulatedFault("kill", at, target, 0.1),
            ],
            # The disk is full while the coordinator stands still, or before it dies.
            [
                SimulatedFault("disk_full", at, "", 25.0),
                SimulatedFault("jump", at + 7, "coordinator", 1.0, 3600.0),
            ],
            [
                SimulatedFault("disk_full", at, "", 6.0),
                SimulatedFault("kill", at + 8, "coordinator", 2.0),
            ],
            # What a learner wrote last is read by the next process.
            [
                SimulatedFault("damage_checkpoint", at),
                SimulatedFault("kill", at + 6, "learner-0", 1.0),
            ],
            [SimulatedFault("damage_policy", at), *kills],
            [SimulatedFault("tear", at, "learner-0", 2.0), *kills],
        ]
    )
