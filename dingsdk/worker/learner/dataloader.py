"""Turns what a learner's data source returns into train batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.config import check_known_keys
from dingsdk.data import RowLoaders, SampleBatch
from dingsdk.errors import ConfigError, PolicyOutputTypeError

Batch = SampleBatch | list[Any]
"""What a policy trains on: columns, or rows."""


class SyncDataLoader:
    """Asks the data source for a batch when the learner wants one.

    Args:
        data_source: ``data_source(batch_size)`` returns a SampleBatch, a list of rows, a list
            of callables that each return a row (RowLoaders return all at once), or None when
            there is no more. It may block.
        batch_size: Rows asked for at a time.
        num_workers: Must be 0: batches are made in the learner's own thread.

    Raises:
        ConfigError: ``num_workers`` is not 0.
    """

    def __init__(
        self, data_source: Callable[[int], Any], batch_size: int, num_workers: int = 0
    ) -> None:
        if num_workers != 0:
            raise ConfigError(
                f"policy.learn.learner.dataloader.num_workers is {num_workers!r}; only 0 is "
                "supported: sample payloads arrive as columns, which need no worker processes",
                path="policy.learn.learner.dataloader.num_workers",
                found=num_workers,
            )
        self._data_source = data_source
        self._batch_size = batch_size
        self._closed = False

    @classmethod
    def from_config(
        cls, cfg: Mapping[str, Any], data_source: Callable[[int], Any], batch_size: int
    ) -> SyncDataLoader:
        """Build the loader of ``policy.learn.learner.dataloader``.

        ``chunk_size`` is accepted from older configs and means nothing without workers.
        """
        known = {"num_workers": 0, "chunk_size": None}
        check_known_keys(cfg, known, "policy.learn.learner.dataloader")
        return cls(data_source, batch_size, cfg.get("num_workers", 0))

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
