"""Removers: which positions new rows take, and so which rows leave a full buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable, PartSection, Section
from dingsdk.errors import CheckpointCorruptError
from dingsdk.worker.replay_buffer.interface import Needs
from dingsdk.worker.replay_buffer.storage import Where


class Remover(Needs, Configurable, ABC):
    """Assigns positions to rows and tracks their age; called under the buffer's lock.

    Args:
        cfg: The ``remover`` section of the buffer's config.
        capacity: Number of positions, >= 1.
        seed: Seed of random choices; None takes one from the operating system.
    """

    Config: ClassVar[type[Section]] = PartSection

    is_fifo: ClassVar[bool] = False
    """Whether the oldest rows leave first, and their positions are reused in that order.

    Sequences need it, and so do storages in which a row shares content with newer rows.
    """

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        self.capacity = capacity

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of rows held."""

    @abstractmethod
    def allot(self, n: int) -> tuple[Where, Where | None]:
        """Assign positions to ``n`` new rows (``1 <= n <= capacity``).

        Unused positions are assigned in ascending order, from 0 on.

        Returns:
            The positions in the order of the rows; and the positions among them whose old rows
            leave, oldest row first, or None if no row leaves.
        """

    @abstractmethod
    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map ranks ``0..count-1`` one to one to positions that hold rows, in any order."""

    @abstractmethod
    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map ages (0 is the oldest row, ``count - 1`` the newest) to positions."""

    def newer(self, where: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return how many rows are newer than each row; None if that takes too long."""
        return None

    @abstractmethod
    def clear(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict`: plain numbers, text and arrays."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; change nothing if it is wrong.

        Raises:
            CheckpointCorruptError: its entries do not fit the capacity or each other.
        """

    def oldest_first(self) -> NDArray[np.int64]:
        """Return the positions of all rows by age."""
        return self.by_age(np.arange(self.count, dtype=np.int64))


class FifoRemover(Remover):
    """A ring: the oldest rows leave first (type ``fifo``)."""

    config: ClassVar[dict[str, Any]] = {"type": "fifo"}
    is_fifo: ClassVar[bool] = True

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        self._tail = 0
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def allot(self, n: int) -> tuple[Where, Where | None]:
        start, count, capacity = self._tail, self._count, self.capacity
        stop = start + n
        where: Where
        if stop <= capacity:
            where = slice(start, stop)
            self._tail = 0 if stop == capacity else stop
        else:
            where = np.arange(start, stop, dtype=np.int64) % capacity
            self._tail = stop - capacity
        if count == capacity:
            return where, where
        leaving = count + n - capacity
        if leaving <= 0:
            self._count = count + n
            return where, None
        self._count = capacity
        # The ring was not full, so rows fill its free end first and then replace from 0 on.
        return where, slice(0, leaving)

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        # Rows fill 0..count-1 whether or not the ring has wrapped.
        return ranks

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._count < self.capacity or self._tail == 0:
            return ages
        where = ages + self._tail
        # Takes a third of the time of the % operator.
        np.subtract(where, self.capacity, out=where, where=where >= self.capacity)
        return where

    def newer(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self._tail - 1 - where) % self.capacity

    def clear(self) -> None:
        self._tail = self._count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"tail": self._tail, "valid_count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tail, count = state.get("tail"), state.get("valid_count")
        if type(tail) is int and type(count) is int:
            tails = range(self.capacity) if count == self.capacity else (count,)
            if 0 <= count <= self.capacity and tail in tails:
                self._tail, self._count = tail, count
                return
        raise CheckpointCorruptError(
            f"tail {tail!r} and valid_count {count!r} fit no ring of {self.capacity}"
        )
