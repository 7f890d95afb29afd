"""Stores the ``next_obs`` of a row as a link to the row whose ``obs`` is equal, if there is one.

In a complete trajectory the ``next_obs`` of a row is the ``obs`` of a later row, its *follower*.
Rows that have no follower (the last of an episode), or none yet, keep their own copy in a slot.
Followers are found by fingerprint among the rows of the same push and the stored rows without a
follower, so envs may take turns in any order. Rows are linked only after comparing every byte.

Rows must leave oldest first, so that a follower never leaves before the row linked to it.
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
"""Mark of a new row that is not processed yet; processed new row ``i`` has ``_UNSEEN + 1 + i``."""

_WAYS = 4
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0xFF51AFD7ED558CCD)
_OTHER = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)

MOST_ROWS = 1 << 30
"""Largest capacity of a buffer with ``next_of``, because positions are stored in 32 bits."""
_TABLE_ENTRIES = 4096
"""Entries of the table in which the previous step of a pushed row is looked up."""

NewArray = Callable[[str, tuple[int, ...], np.dtype[Any], NDArray[Any] | None], NDArray[Any]]
"""Makes an array from name, shape, dtype and, if given, a shorter array whose rows it keeps."""


class NextOf:
    """The following observations of all rows of a storage.

    Args:
        observed: The (nested) columns of observations ``[capacity, ...]`` of the storage. Rows are
            written to them before :meth:`put` is called.
        new_array: Makes the arrays; their names are ``links`` and ``own.<leaf>``.

    Raises:
        ConfigError: the capacity is above 2**30.
    """

    def __init__(self, observed: Any, new_array: NewArray) -> None:
        self._new_array = new_array
        self._links: NDArray[np.int32] = np.empty(0, np.int32)
        self.observe(observed)
        # The widest unsigned integer whose size divides that of a row (8 bytes for empty rows).
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
        """Switch to longer columns of observations, which hold the same rows.

        Raises as ``NextOf``; MemoryError, OSError: there is no room; nothing changed.
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
        """Number of rows that keep their own copy of the following observation."""
        return self._n_slots - self._n_free

    def reserve(self, rows: int) -> None:
        """Make room for the own copies of ``rows`` more rows, or raise MemoryError or OSError."""
        capacity = len(self._links)
        if self._n_free >= rows or self._n_slots == capacity:
            return
        wanted = min(capacity, self.own_count + rows)
        # Pages never written cost nothing, so growing by half wastes no memory. At most one slot a
        # row is ever in use.
        n_slots = max(wanted, min(capacity, self._n_slots + (self._n_slots >> 1)))
        own = {}
        for name, array in self._stored.items():
            shape = (n_slots, *array.shape[1:])
            own[name] = self._new_array(f"own.{name}", shape, array.dtype, self._own.get(name))
        free = np.empty(n_slots, np.int32)
        # Slots that were used before are used first, because their pages are in memory already.
        added = n_slots - self._n_slots
        free[added : added + self._n_free] = self._free[: self._n_free]
        free[:added] = np.arange(n_slots - 1, self._n_slots - 1, -1)
        self._own, self._free = own, free
        self._n_free += added
        self._n_slots = n_slots

    def recover(self, live: NDArray[np.bool_], own: dict[str, NDArray[Any]]) -> None:
        """Restore the links of an interrupted process, which are in the arrays already.

        A row whose follower was not committed gets its own copy of the follower's observation.
        That observation is stored, because it was written before the row was linked to it.

        Args:
            live: bool[capacity], the positions that hold rows.
            own: The arrays of own copies, by leaf.

        Raises:
            ValueError: a link is not valid.
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
        """Add rows, oldest first; room was reserved, and their observations are stored already.

        Args:
            where: Positions of the rows.
            observed: The (nested) columns of their observations ``[n, ...]``.
            following: The (nested) columns of their following observations.
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

    def take(self, where: Where) -> Any:
        """Return the following observations of rows, in new (nested) arrays."""
        where = one_by_one(where)
        links = self._links[where]
        (alone,) = np.nonzero(links < 0)
        places = -1 - links[alone]
        # Rows with a slot first gather their own observation, which is then overwritten. Other
        # rows may hold data of a killed process.
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


# Compiled loops. Observations are passed as ``words``: their bytes as unsigned integers ``[n, words
# a row]``. The *link* of a row says where its following observation is: a position (>= 0) is the
# row that holds it, and ``-1 - slot`` is the row's own slot. During a push, a link may also be a
# mark with the number of a new row. Marks count up from the least int32, and slots down from -1;
# with at most 2**30 rows they never overlap.


@compiled()
def _fingerprint(words: NDArray[Any], prints: NDArray[np.uint64]) -> None:
    """Mix each row into its fingerprint; different rows hardly ever have equal fingerprints."""
    width = words.shape[1]
    for row in range(words.shape[0]):
        # Four independent chains, because a single chain would wait for each product.
        a, b, c, d = prints[row] ^ _FIRST, _FIRST, _PRIME, _OTHER
        at = 0
        while at + 4 <= width:
            a = (a ^ np.uint64(words[row, at])) * _PRIME
            b = (b ^ np.uint64(words[row, at + 1])) * _PRIME
            c = (c ^ np.uint64(words[row, at + 2])) * _PRIME
            d = (d ^ np.uint64(words[row, at + 3])) * _PRIME
            # Products carry only to higher bits, so mix the upper half into the lower one.
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
    """Find for each new row the row that it may follow, and add the new row to the table.

    The table of fingerprints is small and drops entries; an entry may also be of a row that has
    left. The link of a found row shows whether it can be a predecessor. The bytes are compared
    afterwards.

    Args:
        positions: int64[n], of the new rows, oldest first.
        observed: uint64[n], fingerprints of their observations.
        following: uint64[n], fingerprints of their following observations.
        links: int32[capacity], :data:`_UNSEEN` at the new positions.
        table_prints: uint64[m], fingerprints of following observations without a follower yet.
        table_rows: int32[m], the position of the row of each fingerprint, or -1.
        rows: Set to the position of the row that each new row may follow, or -1.
        slots: Set to the slot with the following observation of that row, or -1.
        inside: Set to the number of that row if it is a new row, or -1.
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
            # _UNSEEN: a later row of this push took the position, but a follower must be newer.
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
    """Link ``rows`` to the new rows that follow them, if ``equal``; give other new rows slots.

    Sets ``own`` to the slot of each new row, or -1. Returns the new height of the stack ``free``.
    """
    lowest = _UNSEEN + positions.shape[0]
    for new in range(positions.shape[0]):
        row = rows[new]
        # Two new rows may have found the same row, by an old and a new entry of the table.
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
