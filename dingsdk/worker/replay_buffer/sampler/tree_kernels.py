"""Compiled inner loops over a sum tree; see ``sum_tree`` for what the arrays hold.

Each call serves a whole batch, level by level: the entries of one level are independent of each
other, so the processor waits for many cache misses at once instead of one after the other.
None takes the interpreter lock.

Positions become unsigned before they index: signed ones might count from the end, and looking
whether they do took half the time of an update.

Measured 2026-11 (2 busy cores at 2.4 GHz, 512 KB of L2; a million leaves, batches of 256): with
8 children a node a draw takes 28 us and an update 10; 16 children draw as fast and take twice
as long to update.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.compiling import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FANOUT = 8
"""Children of a node: eight float64, one cache line."""
_SHIFT = 3
_at = np.uint64


@compiled("float64(float64[::1], int64[::1], float64[::1], int64[::1], float64[::1])")
def draw(sums: Floats, starts: Ints, uniforms: Floats, leaves: Ints, rest: Floats) -> float:
    """Draw one leaf from each of ``n`` equal shares of the total, which must be above 0.

    Args:
        sums: All levels, root first.
        starts: int64[levels + 1], where each level begins, and the end.
        uniforms: float64[n] in [0, 1), where in its share each draw falls.
        leaves: int64[n], receives the leaves, ascending; none of them is 0.
        rest: float64[n], scratch.

    Returns:
        A number of no meaning: it keeps the loads that fetch a level ahead from being left out.
    """
    n = uniforms.shape[0]
    last = starts.shape[0] - 2
    # The targets ascend, so one sweep over a level of not many more nodes serves them all.
    level = 0
    while level < last and starts[level + 2] - starts[level + 1] <= 2 * n:
        level += 1
    begin = starts[level]
    width = starts[level + 1] - begin
    share = sums[0] / n
    node = 0
    before = 0.0
    upto = sums[begin]
    for i in range(n):
        target = (i + uniforms[i]) * share
        while upto <= target:
            following = node + 1
            while following < width and sums[begin + following] == 0.0:
                following += 1
            # Rounding may put the last targets at or past the end: they get the last node
            # that is not empty, here and further down.
            if following == width:
                break
            node = following
            before = upto
            upto += sums[begin + node]
        leaves[i] = node
        rest[i] = target - before
    touched = 0.0
    for below in range(level + 1, last + 1):
        begin = starts[below]
        for i in range(n):
            touched += sums[_at(begin + leaves[i] * FANOUT)]
        for i in range(n):
            first = _at(begin + leaves[i] * FANOUT)
            target = rest[i]
            upto = 0.0
            before = 0.0
            child = 0
            # No branches: which child it will be cannot be predicted.
            for j in range(FANOUT):
                upto += sums[first + _at(j)]
                if upto <= target:
                    before = upto
                    child += 1
            if child == FANOUT:
                child -= 1
                while child > 0 and sums[first + _at(child)] == 0.0:
                    child -= 1
                before = 0.0
                for j in range(child):
                    before += sums[first + _at(j)]
            leaves[i] = leaves[i] * FANOUT + child
            rest[i] = target - before
    return touched


@compiled()
def _lesser(a: float, b: float) -> float:
    return a if a < b else b


@compiled()
def _live(weight: float) -> float:
    return weight if weight > 0.0 else np.inf


@compiled()
def _least(a: float, b: float, c: float, d: float, e: float, f: float, g: float, h: float) -> float:
    left = _lesser(_lesser(a, b), _lesser(c, d))
    return _lesser(left, _lesser(_lesser(e, f), _lesser(g, h)))


@compiled()
def _renew(sums: Floats, lows: Floats, node: int, child: int, are_leaves: bool) -> None:
    # Written out and read once: a third of the time of a loop.
    at = _at(child)
    a, b, c, d = sums[at], sums[at + _at(1)], sums[at + _at(2)], sums[at + _at(3)]
    e, f, g, h = sums[at + _at(4)], sums[at + _at(5)], sums[at + _at(6)], sums[at + _at(7)]
    sums[_at(node)] = ((a + b) + (c + d)) + ((e + f) + (g + h))
    if are_leaves:
        a, b, c, d = _live(a), _live(b), _live(c), _live(d)
        e, f, g, h = _live(e), _live(f), _live(g), _live(h)
    else:
        a, b, c, d = lows[at], lows[at + _at(1)], lows[at + _at(2)], lows[at + _at(3)]
        e, f, g, h = lows[at + _at(4)], lows[at + _at(5)], lows[at + _at(6)], lows[at + _at(7)]
    lows[_at(node)] = _least(a, b, c, d, e, f, g, h)


@compiled("int64(float64[::1], float64[::1], int64[::1], int64[::1], float64[::1], int64[::1])")
def assign(
    sums: Floats, lows: Floats, starts: Ints, leaves: Ints, weights: Floats, nodes: Ints
) -> int:
    """Set leaves, the last of equal ones counting, and recompute what lies above them.

    Args:
        sums, lows, starts: The tree.
        leaves: int64[n].
        weights: float64[n], finite, >= 0.
        nodes: int64[n], scratch.

    Returns:
        By how many there are more leaves above 0 than before.
    """
    n = leaves.shape[0]
    last = starts.shape[0] - 2
    begin = starts[last]
    more = 0
    for i in range(n):
        leaf = _at(begin + leaves[i])
        more += (weights[i] > 0.0) - (sums[leaf] > 0.0)
        sums[leaf] = weights[i]
        nodes[i] = leaves[i] >> _SHIFT
    for level in range(last - 1, -1, -1):
        begin = starts[level]
        below = starts[level + 1]
        are_leaves = level == last - 1
        previous = -1
        kept = 0
        for i in range(n):
            node = nodes[i]
            # Neighbours, as draws give them, share their nodes.
            if node == previous:
                continue
            previous = node
            _renew(sums, lows, begin + node, below + node * FANOUT, are_leaves)
            nodes[kept] = node >> _SHIFT
            kept += 1
        n = kept
    return more


@compiled("int64(float64[::1], float64[::1], int64[::1], int64, int64, float64)")
def fill(sums: Floats, lows: Floats, starts: Ints, first: int, stop: int, weight: float) -> int:
    """Set the leaves ``first..stop-1`` to one weight, or leave them if it is negative.

    Recomputes what lies above them; returns by how many more leaves are above 0 than before.
    """
    last = starts.shape[0] - 2
    begin = starts[last]
    more = 0
    if weight >= 0.0:
        for leaf in range(first, stop):
            more += (weight > 0.0) - (sums[begin + leaf] > 0.0)
            sums[begin + leaf] = weight
    end = stop - 1
    for level in range(last - 1, -1, -1):
        begin = starts[level]
        below = starts[level + 1]
        first >>= _SHIFT
        end >>= _SHIFT
        for node in range(first, end + 1):
            _renew(sums, lows, begin + node, below + node * FANOUT, level == last - 1)
    return more


@compiled(
    "float64(float64[::1], int64[::1], float64[::1], float64, float64, float64, float64[::1])"
)
def weigh(
    kept: Floats,
    where: Ints,
    priorities: Floats,
    exponent: float,
    least: float,
    most: float,
    weights: Floats,
) -> float:
    """Keep priorities by position, raise them to a power within bounds; return the largest."""
    largest = 0.0
    for i in range(where.shape[0]):
        priority = priorities[i]
        kept[_at(where[i])] = priority
        largest = max(largest, priority)
        weights[i] = min(max(priority**exponent, least), most)
    return largest


@compiled("void(float64[::1], int64, int64[::1], float64, float64, float32[::1])")
def importance(
    sums: Floats,
    first_leaf: int,
    leaves: Ints,
    lowest: float,
    beta: float,
    weights: NDArray[np.float32],
) -> None:
    """Compute ``(lowest / leaf) ** beta``, at least the smallest normal float32."""
    exponent = np.float32(beta)
    for i in range(leaves.shape[0]):
        ratio = lowest / sums[_at(first_leaf + leaves[i])]
        weight = np.float32(1.0)
        if ratio < 1.0:
            # A power of float32 takes half the time, but such a ratio may have no float32.
            weight = np.float32(ratio) ** exponent if ratio > 1e-37 else np.float32(ratio**beta)
        weights[i] = max(weight, np.float32(1.1754943508222875e-38))
