"""Compiled inner loops, and how they are compiled.

Imported only where a buffer needs one: to import the compiler takes 0.8 s and 100 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


def compiled(signature: str | None = None) -> Callable[[_Kernel], _Kernel]:
    """Compile a function that runs without the interpreter lock, and cache its code on disk."""

    def compile_kernel(function: _Kernel) -> _Kernel:
        try:
            kernel = njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            # No folder for it can be written to, as in some containers: compiled at each start.
            kernel = njit(signature, nogil=True)(function)
        return cast(_Kernel, kernel)

    return compile_kernel


# Uniform draws ----------------------------------------------------------------------------

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: neighbours land far apart
_HIGH_BITS = np.uint64(32)


@compiled("int64(float64[::1], int64, int64[::1], int64)")
def add_distinct(uniforms: Floats, population: int, ranks: Ints, found: int) -> int:
    """Compiled form of :func:`uniform.add_distinct`."""
    size = ranks.shape[0]
    # An open hash table, a quarter full at most.
    slots = 1
    while slots < 4 * size:
        slots *= 2
    table = np.full(slots, -1, np.int64)
    old, i = found, 0
    found = 0
    while found < size:
        if found < old:
            rank = ranks[found]
        elif i < uniforms.shape[0]:
            rank = np.int64(uniforms[i] * population)
            i += 1
        else:
            break
        slot = np.int64((np.uint64(rank) * _SPREAD) >> _HIGH_BITS) & (slots - 1)
        while table[slot] >= 0 and table[slot] != rank:
            slot = (slot + 1) & (slots - 1)
        if table[slot] != rank:
            table[slot] = ranks[found] = rank
            found += 1
    return found


# Row metadata -----------------------------------------------------------------------------

_UNKNOWN = np.iinfo(np.int64).min


@compiled("int64(float64[::1])")
def first_invalid(priorities: Floats) -> int:
    """Return the index of the first priority that is not finite and >= 0, or -1."""
    for i in range(priorities.shape[0]):
        if not 0.0 <= priorities[i] < np.inf:
            return i
    return -1


@compiled("void(int64[:, ::1], int64, int64, int64, int64[::1])")
def add_rows(facts: NDArray[np.int64], start: int, stop: int, first_id: int, iters: Ints) -> None:
    """Give rows ``start..stop-1`` running ids, iterations (one each, or one for all), no use."""
    each = iters.shape[0] > 1
    for i in range(stop - start):
        facts[start + i, 0] = first_id + i
        facts[start + i, 1] = iters[i] if each else iters[0]
        facts[start + i, 2] = 0


@compiled("void(int64[:, ::1], int64[::1], int64, int64[:, ::1])")
def count_uses(facts: NDArray[np.int64], where: Ints, learner_iter: int, out: Ints) -> None:
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
def match_ids(
    facts: NDArray[np.int64],
    where: Ints,
    ids: Ints,
    priorities: Floats,
    added: float,
    places: Ints,
    values: Floats,
) -> int:
    """Copy positions and priorities of rows that are still there; return how many these are."""
    kept = 0
    for i in range(where.shape[0]):
        row = where[i]
        if 0 <= row < facts.shape[0] and ids[i] >= 0 and facts[np.uint64(row), 0] == ids[i]:
            places[kept] = row
            values[kept] = priorities[i] + added
            kept += 1
    return kept
