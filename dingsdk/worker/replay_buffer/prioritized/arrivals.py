"""Taking pushed rows apart: what is stored, and what a prioritized buffer keeps about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.errors import SchemaMismatchError
from dingsdk.worker.replay_buffer.prioritized.priorities import (
    pushed_iters,
    pushed_priorities,
    read_priorities,
)
from dingsdk.worker.replay_buffer.prioritized.row_facts import UNKNOWN_ITER
from dingsdk.worker.replay_buffer.storage import Rows

ADDED = ("replay_unique_id", "replay_buffer_idx", "IS", "priority", "use", "staleness")
"""The keys that a prioritized sample has and its stored rows have not."""
_ADDED = frozenset(ADDED)
_UNKNOWN = np.array([UNKNOWN_ITER])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came with pushed rows.

    Attributes:
        n: How many rows.
        priorities: float64[n], NaN for a row that came without; None if all did.
        iters: int64[n], the learner iteration of the policy that collected each row, or
            int64[1] for all; ``UNKNOWN_ITER`` where it is not known.
    """

    n: int
    priorities: NDArray[np.float64] | None
    iters: NDArray[np.int64]


def take_apart(rows: Rows) -> tuple[Rows, Arrivals]:
    """Return the rows without the keys that sampling adds, and what came with them.

    The age of a row is read from ``collect_iter``, or ``policy_iter`` where that is missing;
    of several (a sequence) the least counts.

    Raises:
        SchemaMismatchError: a row is no dict, or has no other keys.
        InvalidPriorityError: a priority is no finite number >= 0.
    """
    return _of_columns(rows) if isinstance(rows, SampleBatch) else _of_dicts(rows)


def _of_columns(rows: SampleBatch) -> tuple[SampleBatch, Arrivals]:
    columns = rows.columns
    priority = columns.get("priority")
    priorities = None if priority is None else read_priorities(priority)
    iters = columns.get("collect_iter", columns.get("policy_iter"))
    if iters is None:
        iters = _UNKNOWN
    elif isinstance(iters, dict) or iters.dtype.kind not in "iu" or iters.size < len(rows):
        raise SchemaMismatchError(
            "the column of collect_iter holds no integers",
            key="collect_iter",
            expected="int",
            found=str(getattr(iters, "dtype", "dict")),
        )
    else:
        if iters.ndim > 1:
            iters = iters.reshape(len(rows), -1).min(axis=1)
        iters = np.array(iters, np.int64)
    if not _ADDED.isdisjoint(columns):
        columns = {key: column for key, column in columns.items() if key not in _ADDED}
        if not columns:
            raise _empty_row(0)
        rows = SampleBatch.trusted(columns, len(rows))
    return rows, Arrivals(len(rows), priorities, iters)


def _of_dicts(rows: Sequence[Any]) -> tuple[list[Any], Arrivals]:
    stored: list[Any] = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(
                f"row {index} is a {type(row).__name__}; a prioritized buffer keeps dicts alone, "
                "as its samples carry ids and priorities (type naive takes any object)",
                key="",
                row=index,
                expected="dict",
                found=type(row).__name__,
            )
        if not _ADDED.isdisjoint(row):
            row = {key: value for key, value in row.items() if key not in _ADDED}
        if not row:
            raise _empty_row(index)
        stored.append(row)
    priorities = pushed_priorities([row.get("priority") for row in rows])
    found = pushed_iters([_iter_of(row) for row in rows])
    iters = _UNKNOWN
    if any(value is not None for value in found):
        iters = np.array([UNKNOWN_ITER if value is None else value for value in found], np.int64)
    return stored, Arrivals(len(rows), priorities, iters)


def _iter_of(row: Mapping[str, Any]) -> Any:
    iteration = row.get("collect_iter")
    return row.get("policy_iter") if iteration is None else iteration


def _empty_row(index: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"row {index} holds nothing but what sampling adds ({', '.join(ADDED)})",
        key="",
        row=index,
        expected="a dict with keys of its own",
        found="no such key",
    )
