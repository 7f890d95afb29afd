"""What a prioritized buffer knows about its rows besides their columns and priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.prioritized import fact_kernels as kernels
from dingsdk.worker.replay_buffer.remover import Where

NOBODY = -1
"""The id at a position whose row has left, or that had none yet."""
UNKNOWN_ITER = np.iinfo(np.int64).min
"""The ``collect_iter`` of a row that came without one."""
_ID, _ITER, _USE, _WIDTH = 0, 1, 2, 4
_KEYS = ("replay_unique_id", "collect_iter", "use")


class RowFacts:
    """Id, ``collect_iter`` and number of uses of the row at each position.

    One array, 32 bytes a position, so that all facts of a row come with one cache miss.

    Args:
        capacity: Number of positions.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._facts = np.full((capacity, _WIDTH), NOBODY, np.int64)
        self.next_id = 0
        self.live = 0

    def arrive(self, where: Where, iters: NDArray[np.int64]) -> None:
        """Note new rows at positions: they get the next ids, and no use yet.

        Args:
            where: Positions of n rows; whoever was there before has left, or leaves now.
            iters: int64[n], or int64[1] for all.
        """
        if isinstance(where, slice):
            n = where.stop - where.start
            kernels.arrive(self._facts, where.start, where.stop, self.next_id, iters)
        else:
            n = len(where)
            self._facts[where, _ID] = np.arange(self.next_id, self.next_id + n)
            self._facts[where, _ITER] = iters
            self._facts[where, _USE] = 0
        self.next_id += n
        self.live += n

    def renumber(self, next_id: int) -> None:
        """Move all ids on, so that the next is ``next_id``."""
        here = self._facts[:, _ID] != NOBODY
        self._facts[here, _ID] += next_id - self.next_id
        self.next_id = next_id

    def living(self, where: Where) -> Where:
        """Return those of some positions whose rows have not left."""
        here: NDArray[np.bool_] = self._facts[where, _ID] != NOBODY
        if here.all():
            return where
        if isinstance(where, slice):
            where = np.arange(where.start, where.stop, dtype=np.int64)
        living: NDArray[np.int64] = where[here]
        return living

    def leave(self, where: Where) -> None:
        """Forget the rows at positions, none of which has left before."""
        self._facts[where, _ID] = NOBODY
        self.live -= where.stop - where.start if isinstance(where, slice) else len(where)

    def serve(self, where: NDArray[np.int64], learner_iter: int) -> NDArray[np.int64]:
        """Count one use of each drawn row, and return the facts.

        Returns:
            int64[3, n]: ids, uses (this one included; a row that is drawn twice counts on), and
            staleness, the learner iterations since its policy was current (-1: unknown).
        """
        out = np.empty((3, len(where)), np.int64)
        kernels.serve(self._facts, where, learner_iter, out)
        return out

    def ids(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the rows at positions."""
        ids: NDArray[np.int64] = self._facts[where, _ID]
        return ids

    def iters(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ``collect_iter`` of the rows at positions."""
        iters: NDArray[np.int64] = self._facts[where, _ITER]
        return iters

    def uses(self, where: Where) -> NDArray[np.int64]:
        """Return how often the rows at positions were sampled."""
        uses: NDArray[np.int64] = self._facts[where, _USE]
        return uses

    def set_uses(self, where: NDArray[np.int64], uses: NDArray[np.int64]) -> None:
        """Go on counting the uses of rows at positions from here on."""
        self._facts[where, _USE] = uses

    def known(
        self,
        where: NDArray[np.int64],
        ids: NDArray[np.int64],
        priorities: NDArray[np.float64],
        added: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return those positions, and their priorities, where the row with that id still is.

        Args:
            where: int64[n], any numbers.
            ids: int64[n], any numbers.
            priorities: float64[n].
            added: What to add to each priority.
        """
        places = np.empty(len(where), np.int64)
        values = np.empty(len(where), np.float64)
        n = kernels.match(self._facts, where, ids, priorities, added, places, values)
        return places[:n], values[:n]

    def clear(self) -> None:
        """Forget all rows; the running id goes on, so that none is ever given twice."""
        self._facts.fill(NOBODY)
        self.live = 0

    def state_dict(self, positions: int) -> dict[str, Any]:
        """Return the facts at positions ``0..positions-1``."""
        columns = self._facts[:positions].T
        return {
            "next_unique_id": self.next_id,
            **{key: columns[index].copy() for index, key in enumerate(_KEYS)},
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any], capacity: int, positions: int) -> RowFacts:
        """Return the facts of a state.

        Raises:
            CheckpointCorruptError: they contradict themselves.
        """
        facts = cls(capacity)
        try:
            columns = [np.asarray(state[key]) for key in _KEYS]
            facts.next_id = state["next_unique_id"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointCorruptError(f"the facts about rows are wrong: {error}") from error
        for column in columns:
            if column.dtype.kind not in "iu" or column.shape != (positions,):
                raise CheckpointCorruptError(
                    f"the facts about rows have {column.dtype}{list(column.shape)}; expected "
                    f"integers of {positions} rows"
                )
        ids, _, use = columns
        live = ids[ids != NOBODY]
        told_apart = len(np.unique(live)) == len(live) and np.all(use >= NOBODY)
        least, most = live.min(initial=0), live.max(initial=-1)
        if not (told_apart and type(facts.next_id) is int and 0 <= least <= most + 1):
            raise CheckpointCorruptError("the ids or uses of the rows contradict each other")
        if facts.next_id <= most:
            raise CheckpointCorruptError(
                f"next_unique_id is {facts.next_id}, but the row with id {most} came before"
            )
        for index, column in enumerate(columns):
            facts._facts[:positions, index] = column
        facts.live = len(live)
        return facts
