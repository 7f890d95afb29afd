"""Following observations stored once: as a link to the row whose observation they are.

In an unbroken trajectory the ``next_obs`` of a row is the ``obs`` of a later one. Rows whose
follower never comes (the last of an episode), or has not come yet, keep a copy of their own.
Followers are found by fingerprint among the rows of the same push and those that still wait,
in whatever order the envs take turns, and linked only after comparing every byte.

Rows must leave oldest first: a follower is then always younger than the row linked to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.kernels import compiled
from dingsdk.worker.replay_buffer.storage import Where, one_by_one
from dingsdk.worker.replay_buffer.storage.schema import row_bytes

_UNSEEN = np.iinfo(np.int32).min
"""The mark of a new row before it is processed; then new row ``i`` has ``_UNSEEN + 1 + i``."""

_WAYS = 4
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0xFF51AFD7ED558CCD)
_OTHER = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)

MOST_ROWS = 1 << 30
"""Capacity of a buffer with ``next_of``: positions are kept in 32 bits."""
_TABLE_ENTRIES = 4096
"""Entries of the table in which the step before a pushed one is looked up."""

NewArray = Callable[[str, tuple[int, ...], np.dtype[Any], NDArray[Any] | None], NDArray[Any]]
"""Makes an array by name, shape and dtype; of a shorter one that is given it keeps the rows."""


class NextOf:
    """The following observations of all rows of a storage.

    Args:
        observed: The (nested) columns of observations ``[capacity, ...]`` of the storage, which
            rows are written to before :meth:`put` hears of them.
        new_array: Makes the arrays; the names are ``links`` and ``own.<leaf>``.

    Raises:
        ConfigError: the capacity is above 2**30.
    """

    def __init__(self, observed: Any, new_array: NewArray) -> None:
        self._new_array = new_array
        self._links: NDArray[np.int32] = np.empty(0, np.int32)
        self.observe(observed)
        # The widest unsigned integer that divides a row; 8 bytes of a row of none.
        self._words: dict[str, np.dtype[Any]] = {}
        for name, array in self._stored.items():
            size_bytes = row_bytes(array)
            word = next(word for word in (8, 4, 2, 1) if size_bytes % word == 0)
            self._words[name] = np.dtype(f"u{word}")
        capacity = len(self._links)
        self._own: dict[str, NDArray[Any]] = {}
        self._n_slots = 0
        self._free = np.empty(0, np.int32)
        self._n_free = 0
        entries = min(_TABLE_ENTRIES, max(64, 1 << (capacity - 1).bit_length()))
        self._table_prints = np.zeros(entries, np.uint64)
        self._table_rows = np.full(entries, -1, np.int32)

    def observe(self, observed: Any) -> None:
        """Go on with longer columns of observations, which hold the rows that there are.

        Raises as ``NextOf``; MemoryError, OSError: there is no room for more; nothing changed.
        """
        stored = dict(leaves({"": observed}))
        capacity = len(next(iter(stored.values())))
        if capacity > MOST_ROWS:
            raise ConfigError(
                f"storage.next_of serves up to {MOST_ROWS} rows, not {capacity}; leave it out or "
                "lower replay_buffer_size",
                path="storage.next_of",
            )
        old = self._links if len(self._links) else None
        self._links = self._new_array("links", (capacity,), np.dtype(np.int32), old)
        self._observed, self._stored = observed, stored

    @property
    def own_count(self) -> int:
        """Rows that keep a following observation of their own."""
        return self._n_slots - self._n_free

    def reserve(self, rows: int) -> None:
        """Make room for as many own observations, or raise MemoryError or OSError."""
        capacity = len(self._links)
        if self._n_free >= rows or self._n_slots == capacity:
            return
        wanted = min(capacity, self.own_count + rows)
        # Untouched pages cost nothing, so growing by half wastes none; more are never in use.
        n_slots = max(wanted, min(capacity, self._n_slots + (self._n_slots >> 1)))
        own = {}
        for name, array in self._stored.items():
            shape = (n_slots, *array.shape[1:])
            own[name] = self._new_array(f"own.{name}", shape, array.dtype, self._own.get(name))
        free = np.empty(n_slots, np.int32)
        # The lowest are used first, as those that were used already are in memory.
        added = n_slots - self._n_slots
        free[added : added + self._n_free] = self._free[: self._n_free]
        free[:added] = np.arange(n_slots - 1, self._n_slots - 1, -1)
        self._own, self._free = own, free
        self._n_free += added
        self._n_slots = n_slots

    def recover(self, live: NDArray[np.bool_], own: dict[str, NDArray[Any]]) -> None:
        """Take over the links of an interrupted process, which lie in the arrays already.

        Rows whose follower was being written get its observation for their own: it is there,
        as it was written before they were linked to it.

        Args:
            live: bool[capacity], the positions that hold rows.
            own: The arrays of own observations, by leaf.

        Raises:
            ValueError: a link leads nowhere.
            MemoryError, OSError: there is no room.
        """
        capacity = len(live)
        self._links[~live] = 0
        n_slots = len(next(iter(own.values())))
        links = self._links.astype(np.int64)
        if links.max() >= capacity or links.min() < -n_slots:
            raise ValueError("a link leads nowhere")
        slots = -1 - links[links < 0]
        used = np.zeros(n_slots, np.bool_)
        used[slots] = True
        if np.count_nonzero(used) != len(slots):
            raise ValueError("two links lead to one place")
        self._own, self._n_slots = own, n_slots
        free = np.flatnonzero(~used)[::-1]
        self._free = np.empty(n_slots, np.int32)
        self._free[: len(free)] = free
        self._n_free = len(free)
        cut = np.flatnonzero(live & (links >= 0) & ~live[np.maximum(links, 0)])
        self.reserve(len(cut))
        for row in cut.tolist():
            self._n_free -= 1
            slot = self._free[self._n_free]
            for name, array in self._stored.items():
                self._own[name][slot] = array.take(links[row], 0)
            self._links[row] = -1 - slot

    def put(self, where: Where, observed: Any, following: Any) -> None:
        """Add rows, oldest first; room for them was reserved, and ``observed`` is stored.

        Args:
            where: Their positions.
            observed: Their (nested) columns of observations ``[n, ...]``.
            following: Those of their following observations.
        """
        where = one_by_one(where)
        n = len(where)
        links = self._links[where]
        freed = -1 - links[links < 0]
        self._free[self._n_free : self._n_free + len(freed)] = freed
        self._n_free += len(freed)
        self._links[where] = _UNSEEN
        now = {name: self._in_words(name, array) for name, array in leaves({"": observed})}
        after = {name: self._in_words(name, array) for name, array in leaves({"": following})}
        prints = np.zeros((2, n), np.uint64)
        for name in self._words:
            _fingerprint(now[name], prints[0])
            _fingerprint(after[name], prints[1])
        rows, slots, inside, own = np.empty((4, n), np.int64)
        table, entries = self._table_prints, self._table_rows
        _propose(where, prints[0], prints[1], self._links, table, entries, rows, slots, inside)
        equal = np.ones(n, np.bool_)
        news = np.arange(n)
        for name in self._words:
            _compare(after[name], inside, now[name], news, equal)
            if self._n_slots:
                _compare(self._in_words(name, self._own[name]), slots, now[name], news, equal)
        self._n_free = _settle(where, rows, equal, self._links, self._free, self._n_free, own)
        (alone,) = np.nonzero(own >= 0)
        if len(alone):
            places = own[alone]
            for name, array in leaves({"": following}):
                self._own[name][places] = array[alone]

    def seal(self) -> None:
        """Stop linking new rows to stored ones."""
        self._table_rows[:] = -1

    def take(self, where: Where) -> Any:
        """Return the following observations of rows, in new (nested) arrays."""
        where = one_by_one(where)
        links = self._links[where]
        (alone,) = np.nonzero(links < 0)
        places = -1 - links[alone]
        # Slots look up their own row, for a moment; others may hold what a killed process left.
        followers = np.where(links < 0, where, links) if len(alone) else links
        names = iter(self._stored)

        def gather(array: NDArray[Any]) -> NDArray[Any]:
            name, taken = next(names), array.take(followers, 0)
            if len(alone):
                taken[alone] = self._own[name][places]
            return taken

        return map_columns(gather, {"": self._observed})[""]

    def _in_words(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        rows = np.ascontiguousarray(array).reshape(len(array), -1).view(self._words[name])
        return rows if rows.flags.aligned else rows.copy()


# Compiled loops. Observations come as ``words``: their bytes as unsigned integers ``[n, words a
# row]``. A *link* is what a row knows of its following observation: the position (>= 0) of the row
# that holds it, ``-1 - slot`` for a slot of its own, or, during a push only, a mark that says which
# of the new rows it is. Marks count up from the least int32, slots down from -1; with at most
# 2**30 rows they never meet.


@compiled()
def _fingerprint(words: NDArray[Any], prints: NDArray[np.uint64]) -> None:
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
def _compare(
    left: NDArray[Any],
    left_rows: NDArray[np.int64],
    right: NDArray[Any],
    right_rows: NDArray[np.int64],
    equal: NDArray[np.bool_],
) -> None:
    """Set ``equal`` to False for the pairs of rows that differ; pairs < 0 are skipped."""
    for pair in range(left_rows.shape[0]):
        one, other = left_rows[pair], right_rows[pair]
        if one < 0 or other < 0 or not equal[pair]:
            continue
        for at in range(left.shape[1]):
            if left[one, at] != right[other, at]:
                equal[pair] = False
                break


@compiled()
def _propose(
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
        links: int32[capacity], :data:`_UNSEEN` at the new positions.
        table_prints: uint64[m], fingerprints of following observations that were not met yet.
        table_rows: int32[m], the positions of the rows that they are of, or -1.
        rows: Set to the position of the row that each may follow, or -1; its following
            observation is in ``slots``, or is that of the new row in ``inside`` (else -1).
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
            if link < 0 and link != _UNSEEN:
                rows[new] = row
                if link <= _UNSEEN + positions.shape[0]:
                    inside[new] = link - _UNSEEN - 1
                else:
                    slots[new] = -1 - link
                table_rows[entry] = -1
                break
        links[positions[new]] = _UNSEEN + 1 + new
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
def _settle(
    positions: NDArray[np.int64],
    rows: NDArray[np.int64],
    equal: NDArray[np.bool_],
    links: NDArray[np.int32],
    free: NDArray[np.int32],
    n_free: int,
    own: NDArray[np.int64],
) -> int:
    """Link ``rows`` to the new ones that follow them, where ``equal``; give other new rows slots.

    Sets ``own`` to the slot of each new row, or -1. Returns the new height of the stack ``free``.
    """
    lowest = _UNSEEN + positions.shape[0]
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
