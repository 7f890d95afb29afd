"""Buffers with defects in push and sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from dingsdk.errors import (
    SchemaMismatchError,
)

from .buffer_mutant import ORDER, Naive, NaiveObjects, mutant


@mutant(2, *ORDER)
class ForgetsTheOrderAtTheSeam(Naive):
    def _insert(self, rows: Any, n: int) -> None:
        super()._insert(rows, n)
        by_age = type(self._remover).by_age
        if self._remover.state_dict()["tail"]:
            self._remover.by_age = lambda ages: ages  # type: ignore[method-assign]
        else:
            self._remover.by_age = by_age.__get__(self._remover)  # type: ignore[method-assign]


@mutant(1)
class CountsEmptyPushes(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        if isinstance(data, list) and not data:
            self._pushed += 1


@mutant(5, 9)
class SharesItsRows(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        if isinstance(data, list) and data and self._remover.state_dict()["tail"] >= len(data):
            tail = self._remover.state_dict()["tail"]
            self._storage._items[tail - len(data) : tail] = data  # type: ignore[union-attr]


@mutant(5)
class WritesIntoRows(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        for row in data if isinstance(data, list) else []:
            if isinstance(row, dict) and "id" in row:
                row["priority"] = 1.0


@mutant(7)
class DropsWhatIsNoRow(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, list):
            data = [row for row in data if row]
        super().push(data, *args, **options)


@mutant(8)
class NamesNoKey(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        try:
            super().push(data, *args, **options)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(str(error), key="") from error


@mutant(9)
class TurnsTuplesIntoLists(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, list):
            data = [list(row) if isinstance(row, tuple) else row for row in data]
        super().push(data, *args, **options)


@mutant(12)
class ReturnsTooMany(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        # Simulates a buffer that rounds the batch size up.
        if size == 3 and self.push_count == 8:
            size = 4
        return super().sample(size, *args, **options)


@mutant(11)
class WidensRewards(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        found = super().sample(*args, **options)
        if not found:
            return found
        return found.with_columns(reward=found.columns["reward"].astype(np.float64))


@mutant(5, 9)
class SharesWhatItReturns(NaiveObjects):
    def sample(self, *args: Any, **options: Any) -> Any:
        storage: Any = self._storage
        if storage is None:
            return super().sample(*args, **options)
        storage.take = lambda where: [storage._items[position] for position in where.tolist()]
        try:
            return super().sample(*args, **options)
        finally:
            del storage.take


@mutant(15)
class HasNoEmptyBatch(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        found = super().sample(size, *args, **options)
        return None if found == [] else found


@mutant(18)
class RepeatsRows(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._sampler).draw.__get__(self._sampler)  # type: ignore[attr-defined]
        self._sampler.draw = lambda population, size, replace: draw(population, size, True)  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(19)
class CountsPositions(Naive):
    def sample(self, size: int, iteration: int, sample_range: Any = None, **options: Any) -> Any:
        if not isinstance(sample_range, slice):
            return super().sample(size, iteration, sample_range, **options)
        by_age = self._remover.by_age
        self._remover.by_age = lambda ages: ages  # type: ignore[method-assign]
        try:
            return super().sample(size, iteration, sample_range, **options)
        finally:
            self._remover.by_age = by_age  # type: ignore[method-assign]


@mutant(20)
class KeepsTheSchema(Naive):
    def clear(self) -> None:
        storage = self._storage
        if storage is not None:
            storage.clear = lambda: None  # type: ignore[method-assign]
        super().clear()
