"""What goes wrong in a simulation, and when."""

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
"""Faults that only a coordinator with a journal survives, with their target."""
OF_COORDINATOR: tuple[Kind, ...] = ("stop", "jump", "kill", "tear", "usurp")


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One thing that goes wrong.

    Attributes:
        kind: What: a process is killed, or dies in the middle of one of its next writes
            (``tear``), is stopped (SIGSTOP), also while another coordinator is started in its
            place (``usurp``), hangs or is slow; all processes are killed, and what is in memory
            is gone: payloads and policies (``crash``); its clock jumps forward; its
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


class Step(NamedTuple):
    """A fault of a story.

    Attributes:
        kind: What goes wrong.
        target: ``any`` for a worker and ``collector`` for a collector, the same in the whole
            story, ``all`` for each worker, ``collectors`` for each of these, or the name of a
            process; empty for the disk.
        after_s: How long after the beginning of the story.
        for_s: How long; None for any time.
        amount: How much; None for what chance says.
    """

    kind: Kind
    target: str = ""
    after_s: float = 0.0
    for_s: float | None = None
    amount: float | None = None


BEGUN_S = 8.0
"""By then there are payloads, a policy and a checkpoint that may be harmed."""
ENDING: tuple[Kind, ...] = ("raise", "poison", "conflict", "unlock")
"""Faults that end the run."""
STORIES: tuple[tuple[Step, ...], ...] = (
    (),
    (Step("kill", "any"),),
    (Step("stop", "any", 0, 45.0),),
    # Short, so that no worker is lost: all that was lost has to be sent again.
    tuple(Step("lost", "all", 4.0 * n, 1.0, 0.5) for n in range(3)),
    (Step("repeat", "collectors", 0, 8.0),),
    (Step("disk_late", "", 0, 25.0, 0.4),),
    (Step("cut", "any", 0, 8.0),),
    (Step("stray", "any"),),
    (Step("raise", "any"),),
    (Step("slow", "any", 0, 25.0),),
    (Step("kill", "coordinator"),),
    # What it has to note finds no room when the coordinator dies.
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
    # The disk is full before the coordinator dies, or while it stands still.
    (Step("disk_full", "", 0, 6.0), Step("kill", "coordinator", 8.0, 2.0)),
    (Step("disk_full", "", 0, 25.0), Step("jump", "coordinator", 7.0, 1.0, 3600.0)),
    # What a learner wrote last is read by the next process.
    (Step("damage_checkpoint"), Step("kill", "learner-0", 6.0, 1.0)),
    (Step("damage_policy"), Step("kill", "collectors", 6.5, 0.5)),
    (Step("tear", "learner-0", 0, 2.0), Step("kill", "collectors", 6.5, 0.5)),
    # A process hangs as soon as it is there.
    (Step("hang", "any", 0, 45.0), Step("kill", "any", 1.0, 0.5)),
    (Step("usurp", "coordinator", 0, 25.0),),
    # With a learner a coordinator would have facts to note, and be told so that it was replaced.
    (Step("kill", "learner-0", 0, 30.0), Step("usurp", "coordinator", 8.0, 25.0)),
    # A process that is replaced at once, its last words still on their way.
    (Step("late", "any", 0, 8.0, 3.0), Step("kill", "any", 2.0, 0.1)),
    # A learner that is lost again and again, and works in between.
    tuple(Step("kill", "learner-0", 20.0 * n, 1.0) for n in range(4)),
    # Collectors that wait for a learner that is not there.
    (Step("kill", "learner-0", 0, 70.0),),
    (Step("jump", "any"),),
    (Step("damage_payload"), Step("damage_payload", "", 1.0)),
    (Step("stop", "coordinator"),),
    (Step("disk_slow"),),
    (Step("crash", "coordinator"),),
)
"""What may go wrong together. Chance alone would bring most of it about too rarely."""


def story_faults(
    story: tuple[Step, ...], chance: random.Random, workers: Sequence[str], until: float
) -> list[SimulatedFault]:
    """Return the faults of a story that begins before a time, in the order of their beginning."""
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
    """Return up to 4 faults that begin in ``[0, until)``, in the order of their beginning."""
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
    """Return a fault of a kind that takes any time, to any degree."""
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
