"""The compiled inner loop of drawing distinct rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.compiling import compiled

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: neighbours land far apart
_HIGH_BITS = np.uint64(32)


@compiled("int64(float64[::1], int64, int64[::1], int64)")
def add_distinct(
    uniforms: NDArray[np.float64], population: int, ranks: NDArray[np.int64], found: int
) -> int:
    """Do what :func:`uniform.add_distinct` does."""
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
