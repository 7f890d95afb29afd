"""Compiled loops of :mod:`next_of`: finding rows whose observation is another row's next one.

Rows of observations come as ``words``: their bytes as unsigned integers ``[n, words a row]``.

A *link* is what a row knows of its following observation: the position (>= 0) of the row that
holds it, ``-1 - slot`` for a place of its own, or, during a push only, a mark that tells which of
the new rows it is. Marks grow up from the least int32, slots down from -1; with at most 2**30
rows they never meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.compiling import compiled

UNSEEN = np.iinfo(np.int32).min
"""The mark of a new row that was not looked at yet; that of new row ``i`` is ``UNSEEN + 1 + i``."""

_WAYS = 4
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0xFF51AFD7ED558CCD)
_OTHER = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)


@compiled()
def fingerprint(words: NDArray[Any], prints: NDArray[np.uint64]) -> None:
    """Mix each row into its fingerprint; equal rows have equal ones, others hardly ever."""
    width = words.shape[1]
    for row in range(words.shape[0]):
        # Four chains, as one would wait for its last product at every step.
        a, b, c, d = prints[row] ^ _FIRST, _FIRST, _PRIME, _OTHER
        at = 0
        while at + 4 <= width:
            a = (a ^ np.uint64(words[row, at])) * _PRIME
            b = (b ^ np.uint64(words[row, at + 1])) * _PRIME
            c = (c ^ np.uint64(words[row, at + 2])) * _PRIME
            d = (d ^ np.uint64(words[row, at + 3])) * _PRIME
            # Products carry upwards only, so the upper half has to come down.
            a ^= a >> _HALF
            b ^= b >> _HALF
            c ^= c >> _HALF
            d ^= d >> _HALF
            at += 4
        while at < width:
            a = (a ^ np.uint64(words[row, at])) * _PRIME
            a ^= a >> _HALF
            at += 1
        a = ((a * _OTHER) ^ b) * _PRIME
        a = ((a ^ (a >> _HALF)) * _OTHER ^ c) * _PRIME
        a = ((a ^ (a >> _HALF)) * _OTHER ^ d) * _PRIME
        prints[row] = a ^ (a >> _HALF)


@compiled()
def compare(
    left: NDArray[Any],
    left_rows: NDArray[np.int64],
    right: NDArray[Any],
    right_rows: NDArray[np.int64],
    equal: NDArray[np.bool_],
) -> None:
    """Set ``equal`` to False for the pairs of rows that differ in a byte; pairs < 0 are skipped."""
    for pair in range(left_rows.shape[0]):
        one, other = left_rows[pair], right_rows[pair]
        if one < 0 or other < 0 or not equal[pair]:
            continue
        for at in range(left.shape[1]):
            if left[one, at] != right[other, at]:
                equal[pair] = False
                break


@compiled()
def propose(
    positions: NDArray[np.int64],
    observed: NDArray[np.uint64],
    following: NDArray[np.uint64],
    links: NDArray[np.int32],
    table_prints: NDArray[np.uint64],
    table_rows: NDArray[np.int32],
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    inside: NDArray[np.int64],
) -> None:
    """Find for each new row the row that it may follow, and remember what it is followed by.

    The table of fingerprints is small and forgets; an entry may also be of a row that is gone.
    Links say whether what it leads to can be a predecessor, and the bytes are compared after.

    Args:
        positions: int64[n], of the new rows, in the order of their age.
        observed: uint64[n], fingerprints of their observations.
        following: uint64[n], those of their following observations.
        links: int32[capacity], :data:`UNSEEN` at the new positions.
        table_prints: uint64[m], fingerprints of following observations that were not met yet.
        table_rows: int32[m], the positions of the rows that they are of, or -1.
        rows: int64[n], set to the position of the row that this one may follow, or -1.
        slots: int64[n], set to where that row keeps its following observation, or -1 if ...
        inside: int64[n], ... it is a new row: set to which one, else -1.
    """
    buckets = np.uint64(table_rows.shape[0] // _WAYS - 1)
    for new in range(positions.shape[0]):
        rows[new] = slots[new] = inside[new] = -1
        wanted = observed[new]
        start = np.int64(wanted & buckets) * _WAYS
        for entry in range(start, start + _WAYS):
            row = table_rows[entry]
            if row < 0 or table_prints[entry] != wanted:
                continue
            link = np.int64(links[row])
            # A row that is yet to come holds this place now; a follower must be the newer one.
            if link < 0 and link != UNSEEN:
                rows[new] = row
                if link <= UNSEEN + positions.shape[0]:
                    inside[new] = link - UNSEEN - 1
                else:
                    slots[new] = -1 - link
                table_rows[entry] = -1
                break
        links[positions[new]] = UNSEEN + 1 + new
        wanted = following[new]
        start = np.int64(wanted & buckets) * _WAYS
        found = start + np.int64(wanted >> np.uint64(62))
        for entry in range(start, start + _WAYS):
            if table_rows[entry] < 0 or links[table_rows[entry]] >= 0:
                found = np.int64(entry)
                break
        table_prints[found] = wanted
        table_rows[found] = positions[new]


@compiled()
def settle(
    positions: NDArray[np.int64],
    rows: NDArray[np.int64],
    equal: NDArray[np.bool_],
    links: NDArray[np.int32],
    free: NDArray[np.int32],
    n_free: int,
    own: NDArray[np.int64],
) -> int:
    """Link rows to those that were found to follow them, and give the other new rows slots.

    Args:
        positions: int64[n], of the new rows.
        rows: int64[n], the row that each follows, or -1.
        equal: bool[n], whether it does.
        links: int32[capacity], marked by :func:`propose`.
        free: int32[m], a stack of free slots.
        n_free: Its height, >= n.
        own: int64[n], set to the slot of each new row, or -1.

    Returns:
        The new height of the stack.
    """
    lowest = UNSEEN + positions.shape[0]
    for new in range(positions.shape[0]):
        row = rows[new]
        # Two may have found the same row, by an entry of before and one of now.
        if row < 0 or not equal[new] or links[row] >= 0:
            continue
        if links[row] > lowest:
            free[n_free] = -1 - links[row]
            n_free += 1
        links[row] = positions[new]
    for new in range(positions.shape[0]):
        own[new] = -1
        if links[positions[new]] < 0:
            n_free -= 1
            own[new] = free[n_free]
            links[positions[new]] = -1 - free[n_free]
    return n_free
