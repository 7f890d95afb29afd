"""Removers: which positions of the storage the next rows take, and so which rows leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.errors import CheckpointCorruptError

Where = slice | NDArray[np.int64]
"""Positions in a storage, in a given order: a contiguous range, or one by one."""


class Remover(Configurable, ABC):
    """Knows which positions hold rows and how old each is; called under the buffer's lock.

    Args:
        cfg: The ``remover`` section of the buffer's config.
        capacity: Number of positions, >= 1.
    """

    config: ClassVar[dict[str, Any]] = {"type": ""}

    reuses_oldest_first: ClassVar[bool] = False
    """Whether positions are given out again in the order of their rows' ages.

    Sequences, and storages in which rows share content with younger ones, rely on it.
    """

    def __init__(self, cfg: Mapping[str, Any], capacity: int) -> None:
        self.capacity = capacity

    @property
    @abstractmethod
    def count(self) -> int:
        """Rows held."""

    @abstractmethod
    def allot(self, n: int) -> tuple[Where, Where | None]:
        """Give ``n`` new rows (``1 <= n <= capacity``) their positions.

        Returns:
            The positions, in the order of the rows, and those among them whose old rows leave,
            oldest first, or None when nothing leaves.
        """

    def allot_all(self, overtaken: int) -> tuple[Where, Where | None]:
        """Give a whole buffer of new rows their positions, as :meth:`allot` does.

        Args:
            overtaken: How many rows came before them within the same push, and left at once.
        """
        return self.allot(self.capacity)

    def allot_one(self) -> tuple[int, bool]:
        """Give one new row its position; returns it, and whether an old row leaves it."""
        where, leaving = self.allot(1)
        return where.start if isinstance(where, slice) else int(where[0]), leaving is not None

    @abstractmethod
    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map ranks ``0..count-1`` one to one to positions that hold rows, in any order."""

    @abstractmethod
    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map ages (0 is the oldest row, ``count - 1`` the newest) to positions."""

    def newer(self, where: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return how many rows came after each at these positions; None: it takes too long."""
        return None

    @abstractmethod
    def clear(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def state_dict(self) -> dict[str, int]:
        """Return ``tail`` (where the next row goes) and ``valid_count``."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over such a state; changes nothing when it is wrong.

        Raises:
            CheckpointCorruptError: the numbers do not fit the capacity or each other.
        """

    def oldest_first(self) -> NDArray[np.int64]:
        """Return the positions of all rows by age."""
        return self.by_age(np.arange(self.count, dtype=np.int64))


class FifoRemover(Remover):
    """A ring: the oldest rows leave first (type ``fifo``)."""

    config: ClassVar[dict[str, Any]] = {"type": "fifo"}
    reuses_oldest_first: ClassVar[bool] = True

    def __init__(self, cfg: Mapping[str, Any], capacity: int) -> None:
        super().__init__(cfg, capacity)
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

    def allot_all(self, overtaken: int) -> tuple[Where, Where | None]:
        leaving = self.oldest_first() if self._count else None
        # Each row lies where it would if they had been pushed one by one.
        self._tail = (self._tail + overtaken) % self.capacity
        self._count = self.capacity
        return self.oldest_first() if self._tail else slice(0, self.capacity), leaving

    def allot_one(self) -> tuple[int, bool]:
        position, capacity = self._tail, self.capacity
        self._tail = position + 1 if position + 1 < capacity else 0
        if self._count == capacity:
            return position, True
        self._count += 1
        return position, False

    def positions(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        # Rows fill 0..count-1 whether or not the ring has wrapped.
        return ranks

    def by_age(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._count < self.capacity or self._tail == 0:
            return ages
        where = ages + self._tail
        # A third of the time that the remainder takes.
        np.subtract(where, self.capacity, out=where, where=where >= self.capacity)
        return where

    def newer(self, where: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self._tail - 1 - where) % self.capacity

    def clear(self) -> None:
        self._tail = self._count = 0

    def state_dict(self) -> dict[str, int]:
        return {"tail": self._tail, "valid_count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tail, count = state.get("tail"), state.get("valid_count")
        whole = type(tail) is int and type(count) is int
        if not (
            whole
            and 0 <= count <= self.capacity  # type: ignore[operator]
            and (0 <= tail < self.capacity if count == self.capacity else tail == count)  # type: ignore[operator]
        ):
            raise CheckpointCorruptError(
                f"tail {tail!r} and valid_count {count!r} fit no ring of {self.capacity}"
            )
        self._tail, self._count = tail, count  # type: ignore[assignment]
