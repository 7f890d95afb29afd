"""The floor: the same operations on bare numpy columns, in the shortest code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from _buffers.workloads import Columns, Workload


class Floor:
    """A ring of columns without checks, lock, schema or state; full from the start."""

    def __init__(self, load: Workload) -> None:
        import torch  # not at the top: the processes that measure memory must not import it

        self._to_tensor = torch.from_numpy
        self.columns = load.empty(load.capacity)
        for column in self.columns.values():
            column[...] = 0  # touch every page: untouched pages would make the floor look faster
        self._capacity = load.capacity
        self._tail = 0
        self._rng = np.random.Generator(np.random.PCG64(0))

    def push(self, chunk: Columns) -> None:
        start = self._tail
        stop = start + len(chunk["done"])
        where: Any = slice(start, stop)
        if stop >= self._capacity:
            where = np.arange(start, stop) % self._capacity
            stop -= self._capacity
        for name, column in chunk.items():
            self.columns[name][where] = column
        self._tail = stop

    def push_one(self, row: Mapping[str, Any]) -> None:
        position = self._tail
        for name, value in row.items():
            self.columns[name][position] = value
        self._tail = (position + 1) % self._capacity

    def uniform(self, size: int) -> dict[str, Any]:
        # The fastest way to draw, faster than Generator.integers; rows may repeat.
        where = (self._rng.random(size) * self._capacity).astype(np.int64)
        return self._gather(where)

    def sequences(self, batch: int, steps: int) -> dict[str, Any]:
        starts = (self._rng.random(batch) * (self._capacity - steps)).astype(np.int64)
        return self._gather(starts[:, None] + np.arange(steps))

    def _gather(self, where: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {
            name: self._to_tensor(column.take(where, axis=0))
            for name, column in self.columns.items()
        }
