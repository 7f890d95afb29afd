"""Following observations stored once: as a link to the row whose observation they are.

In an unbroken trajectory the ``next_obs`` of a row is the ``obs`` of a later one. Rows whose
follower never comes (the last of an episode), or has not come yet, keep a copy of their own.
Followers are found by fingerprint among the rows of the same push and those that still wait,
in whatever order the envs take turns, and linked only after comparing every byte.

Rows must leave oldest first: a follower is then always younger than the row linked to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data.columns import join_key
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.storage.next_kernels import (
    UNSEEN,
    compare,
    fingerprint,
    propose,
    settle,
)
from dingsdk.worker.replay_buffer.storage.schema import row_bytes

MOST_ROWS = 1 << 30
_TABLE_ENTRIES = 4096

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
        self._words = {name: _word(array) for name, array in self._stored.items()}
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

        Raises:
            ConfigError: the capacity is above 2**30.
            MemoryError, OSError: there is no room for more; nothing changed.
        """
        stored = dict(_leaves(observed))
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
        """Make room for as many following observations of their own.

        Raises:
            MemoryError, OSError: there is none; nothing changed.
        """
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
        """Take in rows, oldest first; room for them was reserved, and ``observed`` is stored.

        Args:
            where: Their positions.
            observed: Their (nested) columns of observations ``[n, ...]``.
            following: Those of their following observations.
        """
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop)
        n = len(where)
        self._release(where)
        self._links[where] = UNSEEN
        now = {name: self._in_words(name, array) for name, array in _leaves(observed)}
        after = {name: self._in_words(name, array) for name, array in _leaves(following)}
        prints = np.zeros((2, n), np.uint64)
        for name in self._words:
            fingerprint(now[name], prints[0])
            fingerprint(after[name], prints[1])
        rows, slots, inside, own = np.empty((4, n), np.int64)
        table, entries = self._table_prints, self._table_rows
        propose(where, prints[0], prints[1], self._links, table, entries, rows, slots, inside)
        equal = np.ones(n, np.bool_)
        news = np.arange(n)
        for name in self._words:
            compare(after[name], inside, now[name], news, equal)
            if self._n_slots:
                compare(self._in_words(name, self._own[name]), slots, now[name], news, equal)
        self._n_free = settle(where, rows, equal, self._links, self._free, self._n_free, own)
        (alone,) = np.nonzero(own >= 0)
        if len(alone):
            places = own[alone]
            for name, array in _leaves(following):
                self._own[name][places] = array[alone]

    def seal(self) -> None:
        """Wait for no follower any more: rows to come are linked among themselves alone."""
        self._table_rows[:] = -1

    def take(self, where: Where) -> Any:
        """Return the following observations of rows, in new (nested) arrays."""
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop)
        links = self._links[where]
        (alone,) = np.nonzero(links.reshape(-1) < 0)
        places = -1 - links.reshape(-1)[alone]
        # Slots look up their own row, for a moment; others may hold what a killed process left.
        followers = np.where(links < 0, where, links) if len(alone) else links

        def gather(name: str, array: NDArray[Any]) -> NDArray[Any]:
            taken = array.take(followers, 0)
            if len(alone):
                flat = taken.reshape(links.size, *array.shape[1:])
                flat[alone] = self._own[name][places]
            return taken

        return _map(gather, self._observed)

    def _release(self, where: NDArray[np.int64]) -> None:
        links = self._links[where]
        slots = -1 - links[links < 0]
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)

    def _in_words(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        word, width = self._words[name]
        if width == 0:
            return np.empty((len(array), 0), np.uint8)
        rows = np.ascontiguousarray(array).reshape(len(array), -1).view(word)
        return rows if rows.flags.aligned else rows.copy()


def _word(array: NDArray[Any]) -> tuple[np.dtype[Any], int]:
    """Return the widest unsigned integer that divides a row, and how many make one."""
    size_bytes = row_bytes(array)
    word = next(word for word in (8, 4, 2, 1) if size_bytes % word == 0)
    return np.dtype(f"u{word}"), size_bytes // word


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, join_key(prefix, key))
    else:
        yield prefix, tree


def _map(fn: Callable[[str, NDArray[Any]], Any], tree: Any, prefix: str = "") -> Any:
    if isinstance(tree, dict):
        return {key: _map(fn, value, join_key(prefix, key)) for key, value in tree.items()}
    return fn(prefix, tree)
