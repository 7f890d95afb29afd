"""RowLoaders: rows as callables; the first call gathers all rows, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import RowLoaders, SampleBatch, collate
from dingsdk.errors import DataMissingError


class Source:
    """Counts calls of ``gather``."""

    def __init__(self) -> None:
        self.batch = SampleBatch({"obs": np.arange(6.0).reshape(3, 2), "IS": np.ones(3)})
        self.gathers = 0

    def gather(self) -> SampleBatch:
        self.gathers += 1
        return self.batch

    def rows(self) -> RowLoaders:
        return RowLoaders(self.gather, 3, load_row)


def load_row(batch: Callable[[], SampleBatch], meta: Mapping[str, Any]) -> dict[str, Any]:
    return dict(batch()[meta["index"]])


def test_each_callable_returns_its_row_and_all_share_one_gather() -> None:
    source = Source()
    rows = source.rows()
    assert isinstance(rows, list)
    assert (len(rows), source.gathers) == (3, 0)

    assert [row()["obs"].tolist() for row in reversed(rows)] == [[4.0, 5.0], [2.0, 3.0], [0.0, 1.0]]
    assert rows[1:][0]()["obs"].tolist() == [2.0, 3.0]
    assert rows.batch() is source.batch
    assert source.gathers == 1


def test_threads_that_call_at_once_share_one_gather() -> None:
    source = Source()
    rows = source.rows()
    threads = [threading.Thread(target=row) for row in rows * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.gathers == 1


def test_collate_returns_the_tensors_of_the_batch() -> None:
    source = Source()
    tensors = collate(source.rows())
    assert torch.equal(tensors["obs"], collate(source.batch)["obs"])
    assert np.shares_memory(tensors["obs"].numpy(), source.batch.columns["obs"])


def test_gather_that_fails_is_tried_again_by_the_next_call() -> None:
    source, errors = Source(), [DataMissingError("gone", data_id="p")]

    def gather() -> SampleBatch:
        if errors:
            raise errors.pop()
        return source.gather()

    rows = RowLoaders(gather, 3, load_row)
    with pytest.raises(DataMissingError):
        rows[0]()
    assert rows[0]()["obs"].tolist() == [0.0, 1.0]
