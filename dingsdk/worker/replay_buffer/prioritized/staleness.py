"""Finding rows of policies that are too old, without looking at all rows."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from dingsdk.worker.replay_buffer.prioritized.row_facts import NOBODY, UNKNOWN_ITER, RowFacts
from dingsdk.worker.replay_buffer.remover import Where

_Group = tuple[NDArray[np.int64], NDArray[np.int64]]


class Staleness:
    """Positions by the learner iteration of the policy that collected their rows.

    Rows may come in any order of iterations, and leave by other ways at any time: positions are
    looked up in ``facts`` when their turn comes, so each push costs the same however many rows
    there are, and so does each row that goes stale.

    Args:
        facts: Of the buffer; empty, or :meth:`rebuild` is called.
    """

    def __init__(self, facts: RowFacts) -> None:
        self._facts = facts
        self._groups: dict[int, list[_Group]] = {}
        self._iters: list[int] = []  # a heap of the keys
        self._noted = 0

    def arrive(self, where: Where) -> None:
        """Note rows whose facts were just stored; those of unknown iteration never go stale."""
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop, dtype=np.int64)
        if self._noted + len(where) > 2 * self._facts.capacity + 1000:
            # Most of what is noted was overwritten long ago.
            self.rebuild()
        else:
            self._note(where)

    def rebuild(self) -> None:
        """Note all rows anew."""
        self._groups, self._iters, self._noted = {}, [], 0
        everywhere = np.arange(self._facts.capacity, dtype=np.int64)
        self._note(everywhere[self._facts.ids(everywhere) != NOBODY])

    def take(self, latest: int) -> NDArray[np.int64]:
        """Return the positions of rows of iteration ``latest`` or before, oldest row first.

        They are forgotten here; the buffer has to remove them.
        """
        if not self._iters or self._iters[0] > latest:
            return np.empty(0, np.int64)
        groups: list[_Group] = []
        while self._iters and self._iters[0] <= latest:
            groups += self._groups.pop(heapq.heappop(self._iters))
        where, ids = (np.concatenate(parts) for parts in zip(*groups, strict=True))
        self._noted -= len(where)
        still_there = self._facts.ids(where) == ids
        stale: NDArray[np.int64] = where[still_there][np.argsort(ids[still_there])]
        return stale

    def _note(self, where: NDArray[np.int64]) -> None:
        iters = self._facts.iters(where)
        for value in np.unique(iters).tolist():
            if value == UNKNOWN_ITER:
                continue
            chosen = where[iters == value]
            if value not in self._groups:
                heapq.heappush(self._iters, value)
            self._groups.setdefault(value, []).append((chosen, self._facts.ids(chosen)))
            self._noted += len(chosen)
