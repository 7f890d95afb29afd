"""Whether calls that overlapped in time returned what some order of them would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operation:
    """A call on a buffer and what came of it.

    Attributes:
        kind: ``push``, ``clear``, ``sample`` (of one row) or ``look`` (all rows, oldest first).
        numbers: What was pushed.
        result: The number that was sampled or None, or the tuple of all numbers.
        began: A count that rises, when the call began.
        ended: The same when it returned.
    """

    kind: str
    numbers: tuple[int, ...]
    result: Any
    began: int
    ended: int


def explains(history: Sequence[Operation], capacity: int) -> bool:
    """Whether there is an order of the calls, true to time, that a FIFO buffer would explain."""
    seen: set[tuple[frozenset[int], tuple[int, ...]]] = set()

    def search(left: frozenset[int], rows: tuple[int, ...]) -> bool:
        if not left:
            return True
        if (left, rows) in seen:
            return False
        seen.add((left, rows))
        first_end = min(history[index].ended for index in left)
        # What began after another ended cannot come before it.
        return any(
            search(left - {index}, after)
            for index in left
            if history[index].began < first_end
            and (after := _apply(history[index], rows, capacity)) is not None
        )

    return search(frozenset(range(len(history))), ())


def _apply(call: Operation, rows: tuple[int, ...], capacity: int) -> tuple[int, ...] | None:
    """Return the rows after a call, or None where it would have returned something else."""
    if call.kind == "push":
        return (*rows, *call.numbers)[-capacity:]
    if call.kind == "clear":
        return ()
    if call.kind == "sample":
        fits = call.result in rows if rows else call.result is None
    else:
        fits = call.result == rows
    return rows if fits else None
