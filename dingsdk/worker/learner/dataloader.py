"""Turns what a learner's data source returns into train batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dingsdk.config import Count, Section
from dingsdk.data import RowLoaders, SampleBatch
from dingsdk.errors import PolicyOutputTypeError

Batch = SampleBatch | list[Any]
"""What a policy trains on: columns, or rows."""


class DataLoaderSection(Section, frozen=True, kw_only=True):
    """Section ``policy.learn.learner.dataloader``.

    Attributes:
        num_workers: Must be 0: payloads arrive as columns, which need no worker processes.
        chunk_size: Accepted from older configs; means nothing without workers.
    """

    num_workers: Literal[0] = 0
    chunk_size: Count | None = None


class SyncDataLoader:
    """Asks the data source for a batch when the learner wants one.

    Args:
        data_source: ``data_source(batch_size)`` returns a SampleBatch, a list of rows, a list
            of callables that each return a row (RowLoaders return all at once), or None when
            there is no more. It may block.
        batch_size: Rows asked for at a time.
    """

    def __init__(self, data_source: Callable[[int], Any], batch_size: int) -> None:
        self._data_source = data_source
        self._batch_size = batch_size
        self._closed = False

    def next(self) -> Batch | None:
        """Return the next batch, or None when there is no more or after ``close()``.

        Raises:
            PolicyOutputTypeError: The data source returned something else.
        """
        if self._closed:
            return None
        data = self._data_source(self._batch_size)
        if data is None or self._closed:
            return None
        if isinstance(data, RowLoaders):
            return data.batch()
        if isinstance(data, SampleBatch):
            return data
        if not isinstance(data, list):
            raise PolicyOutputTypeError(
                f"get_data returned a {type(data).__name__}; return a SampleBatch, a list of "
                "rows, a list of callables that return rows, or None",
                key="get_data",
                expected="SampleBatch | list | None",
                found=type(data).__name__,
            )
        return [item() if callable(item) else item for item in data]

    def close(self) -> None:
        """End the batches; whoever waits in the data source is woken by its owner."""
        self._closed = True
