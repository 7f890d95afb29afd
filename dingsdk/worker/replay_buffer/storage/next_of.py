"""Stores the ``next_obs`` of a row as a link to a newer row whose ``obs`` is equal, if any.

The newer row is the *follower* of the row. A row that has no follower (the last of an episode), or
none yet, keeps its own copy of ``next_obs`` in a slot. Followers are found by a digest of 128 bits:
a new row is the follower of all rows that wait for the digest of its ``obs``. So envs may take
turns in any order, and ``next_obs`` may be several steps ahead, as with n-step returns.

Rows must leave oldest first, so that a follower never leaves before the rows linked to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.storage import Where, one_by_one

MOST_ROWS = 1 << 31
"""Largest capacity of a buffer with ``next_of``, because positions are stored in 32 bits."""
_MOST_WAITING = 2048
"""Most different observations that rows wait for; rows that wait longest keep their own copy."""

NewArray = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Makes an array from name, shape and dtype."""


class NextOf:
    """The following observations of all rows of a storage.

    The *link* of a row is the position of its follower, or ``-1 - slot`` if it has its own copy.

    Args:
        observed: The (nested) columns of observations ``[capacity, ...]`` of the storage. Rows are
            written to them before :meth:`put` is called.
        new_array: Makes the arrays ``links`` and ``own-0000`` (one for each leaf). Their pages that
            are never written should take no room.
        hold: Called before more slots are used, with their number; raises if there is no room.

    Raises:
        ConfigError: the capacity is above 2**31.
    """

    def __init__(self, observed: Any, new_array: NewArray, hold: Callable[[int], None]) -> None:
        stored = dict(leaves({"": observed}))
        capacity = len(next(iter(stored.values())))
        if capacity > MOST_ROWS:
            what = f"storage.next_of serves up to {MOST_ROWS} rows, not {capacity}; leave it out"
            raise ConfigError(f"{what} or lower replay_buffer_size", path="storage.next_of")
        self._hold = hold
        self._observed, self._stored = observed, stored
        self._links: Any = new_array("links", (capacity,), np.dtype(np.int32))
        self._own = {
            name: new_array(f"own-{i:04d}", array.shape, array.dtype)
            for i, (name, array) in enumerate(stored.items())
        }
        self._n_slots = 0
        self._free: list[int] = []
        self._waiting: dict[bytes, Any] = {}
        """The row that waits for each digest, or the list of them: few digests have several rows,
        and a list takes 112 bytes."""

    def reserve(self, rows: int) -> None:
        """Make room for the own copies of ``rows`` more rows; raises as ``hold``."""
        # At most one slot a row is ever in use.
        more = min(rows - len(self._free), len(self._links) - self._n_slots)
        if more > 0:
            self._hold(self._n_slots + more)
            # Slots that were used before are used first, because their pages are in memory already.
            self._free[:0] = range(self._n_slots + more - 1, self._n_slots - 1, -1)
            self._n_slots += more

    def put(self, where: Where, observed: Any, following: Any) -> None:
        """Add rows, oldest first; room was reserved, and their observations are stored already.

        Args:
            where: Positions of the rows.
            observed: The (nested) columns of their observations ``[n, ...]``.
            following: The (nested) columns of their following observations.
        """
        where = one_by_one(where)
        if slots := self._freed(where):
            for digest in self._digests({name: own[slots] for name, own in self._own.items()}):
                self._waiting.pop(digest, None)  # rows that leave wait no longer
        self._links[where] = 0
        now, after = (dict(leaves({"": columns})) for columns in (observed, following))
        followers: dict[int, int] = {}
        found = zip(where.tolist(), self._digests(now), self._digests(after), strict=True)
        for position, mine, wanted in found:
            waited = self._waiting.pop(mine, ())
            followers.update(dict.fromkeys([waited] if type(waited) is int else waited, position))
            others = self._waiting.setdefault(wanted, position)
            if type(others) is list:
                others.append(position)
            elif others is not position:
                self._waiting[wanted] = [others, position]
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        linked = np.fromiter(followers, np.int64)
        self._freed(linked)
        self._links[linked] = list(followers.values())
        alone = [i for i, position in enumerate(where.tolist()) if position not in followers]
        self._keep(where[alone], {name: array[alone] for name, array in after.items()})

    def _freed(self, where: NDArray[np.int64]) -> list[int]:
        """Free the slots of rows, and return them."""
        links = self._links[where]
        slots: list[int] = (-1 - links[links < 0]).tolist()
        self._free += slots
        return slots

    def _keep(self, where: NDArray[np.int64], following: Mapping[str, NDArray[Any]]) -> None:
        """Store own copies of following observations, by leaf."""
        first = len(self._free) - len(where)
        slots = np.array(self._free[first:], np.int64)
        del self._free[first:]
        for name, array in following.items():
            self._own[name][slots] = array
        self._links[where] = -1 - slots

    def _digests(self, columns: Mapping[str, NDArray[Any]]) -> list[bytes]:
        """Return a digest of the bytes of each row of columns, by leaf."""
        arrays = [np.ascontiguousarray(columns[name]) for name in self._stored]
        parts = [array.reshape(len(array), -1).view(np.uint8) for array in arrays]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return [xxhash.xxh3_128_digest(row) for row in rows]

    def take(self, where: Where) -> Any:
        """Return the following observations of rows, in new (nested) arrays."""
        where = one_by_one(where)
        links = self._links[where]
        alone = links < 0
        slots, own = -1 - links[alone], iter(self._own.values())
        # Rows with a slot first gather their own observation, which is then overwritten.
        followers = np.where(alone, where, links)

        def gather(array: NDArray[Any]) -> NDArray[Any]:
            taken = array.take(followers, 0)
            taken[alone] = next(own)[slots]
            return taken

        return map_columns(gather, {"": self._observed})[""]
