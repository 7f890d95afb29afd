"""Compiled inner loops over the facts about rows; see ``row_facts`` for what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.compiling import compiled
from dingsdk.worker.replay_buffer.sampler.tree_kernels import Floats, Ints

_UNKNOWN = np.iinfo(np.int64).min


@compiled("int64(float64[::1])")
def first_wrong(priorities: Floats) -> int:
    """Return the index of the first that is not finite and >= 0, or -1."""
    for i in range(priorities.shape[0]):
        if not 0.0 <= priorities[i] < np.inf:
            return i
    return -1


@compiled("void(int64[:, ::1], int64, int64, int64, int64[::1])")
def arrive(facts: NDArray[np.int64], start: int, stop: int, first_id: int, iters: Ints) -> None:
    """Give rows ``start..stop-1`` running ids, iterations (one each, or one for all), no use."""
    each = iters.shape[0] > 1
    for i in range(stop - start):
        facts[start + i, 0] = first_id + i
        facts[start + i, 1] = iters[i] if each else iters[0]
        facts[start + i, 2] = 0


@compiled("void(int64[:, ::1], int64[::1], int64, int64[:, ::1])")
def serve(facts: NDArray[np.int64], where: Ints, learner_iter: int, out: Ints) -> None:
    """Count a use of each row; write ids, uses and staleness to ``out`` (int64[3, n])."""
    for i in range(where.shape[0]):
        row = np.uint64(where[i])
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
        if 0 <= row < facts.shape[0] and ids[i] >= 0 and facts[np.uint64(row), 0] == ids[i]:
            places[kept] = row
            values[kept] = priorities[i] + added
            kept += 1
    return kept
