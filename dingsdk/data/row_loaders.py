"""The rows of a batch as callables that share one gather."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dingsdk.data.sample_batch import SampleBatch

Row = dict[str, Any]


class RowLoaders(list[Callable[[], Row]]):
    """One callable a row; the first call gathers the batch, for all of them and for ``batch``.

    A callable a row costs more than a whole gather (63 to 13 us for 256 small rows, 2026-11):
    code that can use columns calls ``batch``, as data loaders and ``collate`` do.

    Thread safety: the callables and ``batch`` may be called from any thread.

    Args:
        gather: Returns the batch; called once, when it is first needed.
        size: Rows of the batch.
        load_row: ``load_row(batch, {"index": index})`` returns a row of what ``batch()`` returns.
    """

    def __init__(
        self,
        gather: Callable[[], SampleBatch],
        size: int,
        load_row: Callable[[Callable[[], SampleBatch], Mapping[str, Any]], Row],
    ) -> None:
        super().__init__(partial(load_row, self.batch, {"index": index}) for index in range(size))
        self._gather = gather
        self._lock = threading.Lock()
        self._batch: SampleBatch | None = None

    def batch(self) -> SampleBatch:
        """Return all rows; raises what ``gather`` raises."""
        with self._lock:
            if self._batch is None:
                self._batch = self._gather()
            return self._batch
