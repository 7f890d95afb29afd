"""Compiled inner loops over the facts about rows; see ``row_facts`` for what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.tree_kernels import Floats, Ints, compiled

_UNKNOWN = np.iinfo(np.int64).min


@compiled("void(int64[:, ::1], int64[::1], int64, int64[:, ::1])")
def serve(facts: NDArray[np.int64], where: Ints, learner_iter: int, out: Ints) -> None:
    """Count a use of each row; write ids, uses and staleness to ``out`` (int64[3, n])."""
    for i in range(where.shape[0]):
        row = where[i]
        out[0, i] = facts[row, 0]
        facts[row, 2] += 1
        out[1, i] = facts[row, 2]
        collected = facts[row, 1]
        out[2, i] = -1 if collected == _UNKNOWN else learner_iter - collected


@compiled(
    "int64(int64[:, ::1], int64[::1], int64[::1], float64[::1], float64, int64[::1], float64[::1])"
)
def match(
    facts: NDArray[np.int64],
    where: Ints,
    ids: Ints,
    priorities: Floats,
    added: float,
    places: Ints,
    values: Floats,
) -> int:
    """Keep what is for a row that is still there; return how many that are."""
    kept = 0
    for i in range(where.shape[0]):
        row = where[i]
        if 0 <= row < facts.shape[0] and ids[i] >= 0 and facts[row, 0] == ids[i]:
            places[kept] = row
            values[kept] = priorities[i] + added
            kept += 1
    return kept
