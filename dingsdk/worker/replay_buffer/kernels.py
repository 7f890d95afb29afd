"""The decorator that compiles inner loops, and the loop of uniform draws.

Imported only if a buffer needs compiled code: importing the compiler takes 0.8 s and 100 MB.
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
            # No cache folder is writable, as in some containers: compile at each start.
            kernel = njit(signature, nogil=True)(function)
        return cast(_Kernel, kernel)

    return compile_kernel


_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbouring ranks
_HIGH_BITS = np.uint64(32)


@compiled("int64(float64[::1], int64, int64[::1], int64)")
def add_distinct(uniforms: Floats, population: int, ranks: Ints, found: int) -> int:
    """Compiled form of :func:`uniform.add_distinct`."""
    size = ranks.shape[0]
    # An open-addressing hash table, at most a quarter full.
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
