"""The faults of a simulation, and when they happen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Kind = Literal[
    "kill", "stop", "hang", "slow", "jump", "cut", "late", "lost", "doubled", "repeat", "disk_full",
    "disk_slow", "disk_late", "lose_payload", "damage_payload", "swap_payload", "raise", "poison",
    "tear", "usurp", "crash", "conflict", "unlock", "damage_policy", "damage_checkpoint", "stray",
]  # fmt: skip
OF_WORKERS: tuple[Kind, ...] = (
    "kill", "stop", "hang", "slow", "jump", "cut", "late", "lost", "doubled", "repeat", "stray",
)  # fmt: skip
OF_DISK: tuple[Kind, ...] = (
    "disk_full", "disk_slow", "disk_late", "lose_payload", "damage_payload", "swap_payload",
    "damage_policy", "damage_checkpoint",
)  # fmt: skip
OF_NETWORK: tuple[Kind, ...] = ("cut", "late", "lost", "doubled")
OF_JOURNAL = [(kind, "coordinator") for kind in ("kill", "tear", "usurp", "crash", "unlock")]
"""(fault, target) pairs that only a coordinator with a journal survives."""
OF_COORDINATOR: tuple[Kind, ...] = ("stop", "jump", "kill", "tear", "usurp")


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One fault of a simulation.

    Kinds of faults:

    - of a process: it is killed (``kill``), dies in one of its next writes (``tear``), is stopped
      as by SIGSTOP (``stop``), is stopped while another coordinator is started in its place
      (``usurp``), hangs (``hang``), is slow (``slow``), or its clock jumps forward (``jump``)
    - of all processes: all are killed, and payloads and policies in memory are lost (``crash``)
    - of a connection: it is cut (``cut``), or messages are late, lost or doubled
    - of a worker: a collector announces payloads repeatedly (``repeat``), or a worker answers tasks
      that it does not have (``stray``)
    - of the disk: it is full, slow, or shows payloads late (``disk_full``, ``disk_slow``,
      ``disk_late``); a payload is deleted, damaged or replaced (``lose_payload``,
      ``damage_payload``, ``swap_payload``); the next policy or checkpoint is damaged
      (``damage_policy``, ``damage_checkpoint``)
    - faults that end the run: the env of a worker raises (``raise``), a task kills each process of
      a worker (``poison``), a collector announces two payloads with one id (``conflict``), or the
      file that names the coordinator is deleted (``unlock``)

    Attributes:
        kind: The kind of the fault.
        at: When it begins, in seconds since the start of the run.
        target: Name of the process; empty for the disk.
        for_s: How long it lasts. A killed process is started again after that time.
        amount: A share of the messages, seconds of a delay or a clock jump, a number of
            repetitions, or a factor.
    """

    kind: Kind
    at: float
    target: str = ""
    for_s: float = 0.0
    amount: float = 0.0


class Step(NamedTuple):
    """A fault of a story.

    Attributes:
        kind: The kind of the fault.
        target: ``any`` for a random worker, and ``collector`` for a random collector; each is the
            same one in the whole story. ``all`` for every worker, ``collectors`` for every
            collector, or the name of a process; empty for the disk.
        after_s: When it begins, in seconds after the start of the story.
        for_s: How long it lasts; None for a random time.
        amount: As in ``SimulatedFault``; None for a random amount.
    """

    kind: Kind
    target: str = ""
    after_s: float = 0.0
    for_s: float | None = None
    amount: float | None = None


BEGUN_S = 8.0
"""By this time there are payloads, a policy and a checkpoint that a fault can damage."""
ENDING: tuple[Kind, ...] = ("raise", "poison", "conflict", "unlock")
"""Faults that end the run."""
STORIES: tuple[tuple[Step, ...], ...] = (
    (),
    (Step("kill", "any"),),
    (Step("stop", "any", 0, 45.0),),
    # Short, so that no worker is given up: the lost messages have to be sent again.
    tuple(Step("lost", "all", 4.0 * n, 1.0, 0.5) for n in range(3)),
    (Step("repeat", "collectors", 0, 8.0),),
    (Step("disk_late", "", 0, 25.0, 0.4),),
    (Step("cut", "any", 0, 8.0),),
    (Step("stray", "any"),),
    (Step("raise", "any"),),
    (Step("slow", "any", 0, 25.0),),
    (Step("kill", "coordinator"),),
    # When the coordinator dies, there is no space for its journal entries.
    (Step("disk_full", "", 0, 8.0), Step("kill", "coordinator", 3.0, 2.0)),
    (Step("doubled", "all", 0, 12.0, 0.9), Step("late", "collectors", 0, 12.0, 1.0)),
    (Step("hang", "any", 0, 55.0),),
    (Step("tear", "coordinator"),),
    (Step("swap_payload"), Step("swap_payload", "", 1.0), Step("swap_payload", "", 2.0)),
    (Step("poison", "any"),),
    (Step("jump", "coordinator", 0, None, 60.0),),
    (Step("kill", "learner-0"),),
    (Step("conflict", "collector"),),
    (Step("tear", "learner-0", 0, 1.0), Step("tear", "learner-0", 16.0, 1.0)),
    (Step("unlock", "coordinator"),),
    # Joins whose answers are lost.
    tuple(
        step
        for at in (0.0, 8.0, 16.0)
        for step in (
            Step("lost", "collectors", at, 4.0, 0.4),
            Step("kill", "collectors", at + 1.0, 0.5),
        )
    ),
    (Step("lose_payload"), Step("lose_payload", "", 1.0), Step("lose_payload", "", 2.0)),
    # The disk is full until shortly before the coordinator dies, or when its clock jumps.
    (Step("disk_full", "", 0, 6.0), Step("kill", "coordinator", 8.0, 2.0)),
    (Step("disk_full", "", 0, 25.0), Step("jump", "coordinator", 7.0, 1.0, 3600.0)),
    # The next process reads the last file that the learner wrote.
    (Step("damage_checkpoint"), Step("kill", "learner-0", 6.0, 1.0)),
    (Step("damage_policy"), Step("kill", "collectors", 6.5, 0.5)),
    (Step("tear", "learner-0", 0, 2.0), Step("kill", "collectors", 6.5, 0.5)),
    # A process hangs as soon as it has started.
    (Step("hang", "any", 0, 45.0), Step("kill", "any", 1.0, 0.5)),
    (Step("usurp", "coordinator", 0, 25.0),),
    # Without a learner the replaced coordinator writes nothing that shows it that it was replaced.
    (Step("kill", "learner-0", 0, 30.0), Step("usurp", "coordinator", 8.0, 25.0)),
    # A process that is replaced at once, while its last messages are still under way.
    (Step("late", "any", 0, 8.0, 3.0), Step("kill", "any", 2.0, 0.1)),
    # What a learner has trained on while it was cut off is not reported.
    (Step("cut", "learner-0", 0, 8.0), Step("crash", "coordinator", 4.0, 2.0)),
    (Step("cut", "learner-0", 0, 4.0), Step("kill", "learner-0", 3.0, 1.0)),
    # The journal goes on from the rows of an earlier learner.
    (Step("kill", "learner-0", 0, 1.0), Step("kill", "coordinator", 12.0, 2.0)),
    # A learner that is killed repeatedly, and works between the kills.
    tuple(Step("kill", "learner-0", 20.0 * n, 1.0) for n in range(4)),
    # Collectors that wait for a learner that is down.
    (Step("kill", "learner-0", 0, 70.0),),
    (Step("jump", "any"),),
    (Step("damage_payload"), Step("damage_payload", "", 1.0)),
    (Step("stop", "coordinator"),),
    (Step("disk_slow"),),
    (Step("crash", "coordinator"),),
)
"""Combinations of faults. Most of them would be too rare in random faults."""


def story_faults(
    story: tuple[Step, ...], chance: random.Random, workers: Sequence[str], until: float
) -> list[SimulatedFault]:
    """Return the faults of a story that begins before ``until``, ordered by their start."""
    at = chance.uniform(min(BEGUN_S, until), until)
    collectors = [each for each in workers if each.startswith("collector")]
    groups = {
        "any": [chance.choice([*workers, "learner-0"])],
        "collector": [chance.choice(collectors)],
        "collectors": collectors,
        "all": workers,
    }
    found = []
    for step in story:
        for target in groups.get(step.target, [step.target]):
            drawn = _fault(step.kind, target, chance, at + step.after_s)
            for_s = drawn.for_s if step.for_s is None else step.for_s
            amount = drawn.amount if step.amount is None else step.amount
            found.append(replace(drawn, for_s=for_s, amount=amount))
    return sorted(found, key=lambda fault: fault.at)


def random_faults(
    chance: random.Random, workers: Sequence[str], until: float
) -> list[SimulatedFault]:
    """Return up to 4 random faults that begin in ``[0, until)``, ordered by their start."""
    found = []
    for _ in range(chance.randint(0, 4)):
        place = chance.random()
        if place < 0.6:
            target, kinds = chance.choice(workers), OF_WORKERS
            if target.startswith("learner"):
                kinds = *kinds, "tear"
        elif place < 0.85:
            target, kinds = "", OF_DISK
        else:
            target, kinds = "coordinator", OF_COORDINATOR
        found.append(_fault(chance.choice(kinds), target, chance, chance.uniform(0, until)))
    return sorted(found, key=lambda fault: fault.at)


def _fault(kind: Kind, target: str, chance: random.Random, at: float) -> SimulatedFault:
    """Return a fault of a kind with a random duration and amount."""
    amounts = {
        "slow": chance.uniform(2, 6),
        "jump": chance.choice([3.0, 60.0, 3600.0]),
        "late": chance.uniform(0.1, 3),
        "lost": chance.uniform(0.05, 0.5),
        "doubled": chance.uniform(0.1, 0.9),
        "repeat": chance.randint(1, 4),
        "disk_slow": chance.uniform(0.1, 1.5),
        "disk_late": chance.choice([0.4, 1.5]),
    }
    for_s = chance.choice([0.1, 1.0, 4.0, 8.0, 15.0, 25.0, 45.0])
    amount = float(amounts.get(kind, 0.0))
    return SimulatedFault(kind, round(at, 3), target, for_s, round(amount, 3))
