"""Columns in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.remover import Where
from dingsdk.worker.replay_buffer.schema import Level, convert
from dingsdk.worker.replay_buffer.storage import Rows, Storage


class ArrayStorage(Storage):
    """One preallocated numpy array per column, made at the first push (type ``array``).

    Takes SampleBatch and dicts of numbers and arrays; gives SampleBatch. The first rows set
    names, shapes and dtypes. Later batches must have exactly these; numbers in dicts are
    converted where that loses no more than precision (an int into a float column).
    """

    config: ClassVar[dict[str, Any]] = {"type": "array"}

    def __init__(self, cfg: Mapping[str, Any], capacity: int, deepcopy: bool = False) -> None:
        super().__init__(cfg, capacity, deepcopy)
        self._columns: dict[str, Any] = {}
        self._level: Level | None = None

    def accept(self, rows: SampleBatch | Sequence[Any]) -> SampleBatch:
        level = self._level
        if isinstance(rows, SampleBatch):
            if level is None:
                self._allocate(rows)
            elif not level.fits(rows.columns):
                convert(self._columns, rows.columns, "", strict=True)
            return rows
        batch = SampleBatch.from_rows(rows)
        if level is None:
            self._allocate(batch)
        elif not level.fits(batch.columns):
            columns = convert(self._columns, batch.columns, "", strict=False)
            return SampleBatch.trusted(columns, len(batch))
        return batch

    def put(self, where: Where, rows: Rows) -> None:
        self._level.put(where, rows.columns)  # type: ignore[union-attr]

    def accept_one(self, row: Any) -> Any:
        # A dict that fits goes into the columns as it is; making a batch of it takes 15 us.
        if type(row) is dict and self._level is not None and self._level.fits_row(row):
            return row
        return self.accept([row])

    def put_one(self, position: int, row: Any) -> None:
        if type(row) is dict:
            self._level.put_row(position, row)  # type: ignore[union-attr]
        else:
            self.put(slice(position, position + 1), row)

    def take(self, where: Where) -> SampleBatch:
        if isinstance(where, slice):
            columns = map_columns(lambda array: array[where].copy(), self._columns)
            return SampleBatch.trusted(columns, where.stop - where.start)
        return SampleBatch.trusted(self._level.take(where), len(where))  # type: ignore[union-attr]

    def clear(self) -> None:
        self._columns = {}
        self._level = None

    def _allocate(self, batch: SampleBatch) -> None:
        def allocate(array: NDArray[Any]) -> NDArray[Any]:
            # Untouched pages of np.empty cost nothing, so a large capacity is cheap until used.
            # By its name, as a dtype that was pickled compares more slowly than the one of numpy.
            return np.empty((self.capacity, *array.shape[1:]), dtype=array.dtype.str)

        try:
            columns = map_columns(allocate, batch.columns)
        except (MemoryError, ValueError) as error:
            row = sum(
                math.prod(array.shape[1:]) * array.itemsize for _, array in leaves(batch.columns)
            )
            raise ConfigError(
                f"replay_buffer_size {self.capacity} with rows of {row} bytes needs "
                f"{self.capacity * row} bytes, which cannot be had; choose a smaller one",
                path="replay_buffer_size",
                size_bytes=self.capacity * row,
            ) from error
        self._columns = columns
        self._level = Level(columns)
