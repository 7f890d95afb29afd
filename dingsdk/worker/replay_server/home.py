"""The home of a learner whose replay buffer is on a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer.home import Home, HomeReport
from dingsdk.worker.replay_buffer.interface import rows_in
from dingsdk.worker.replay_server.client import ReplayClient

FIGURES_S = 0.5
"""Longest age of the counts that are reported."""


class ServedHome(Home):
    """Draws batches from a replay server, to which collectors send their samples themselves.

    As the rows that are inserted do not pass this process, ``observe`` is called with those of each
    batch that are drawn for the first time. A row has a ``use`` if the buffer is prioritized; rows
    of other buffers are observed whenever they are drawn.

    Args:
        client: Connection to the server; the caller closes it.
        wait_s: Seconds that the server may wait for the rows of a batch.
        retry_s: Seconds to wait after that before asking again.
        drawn: What the buffer draws, as ``IBuffer.draws``.
    """

    def __init__(
        self, client: ReplayClient, wait_s: float, retry_s: float, drawn: str = "rows"
    ) -> None:
        super().__init__()
        self.retry_s = retry_s
        self._client = client
        self._wait_s = wait_s
        self._drawn = drawn
        self._idle_at = -1
        """How much was announced when the server was last asked, if it gave no batch; else -1."""
        self._figures: dict[str, int] = {}
        self._asked_at = 0.0
        self._is_news = False

    @property
    def is_idle(self) -> bool:
        """Whether the server was asked after the last announcement, and gave no batch."""
        return self._idle_at == self.announced

    def announce(self, news: Iterable[Mapping[str, Any]]) -> None:
        """Note that collectors of the run have inserted rows."""
        self.announced += len(list(news))

    def sample(self, size: int, train_iter: int) -> SampleBatch | list[Any] | None:
        announced, self._idle_at = self.announced, -1
        batch = self._client.sample(size, train_iter=train_iter, timeout_s=self._wait_s)
        if time.monotonic() - self._asked_at > FIGURES_S:
            self._ask()
        if batch is None:
            self._idle_at = announced
        if batch is not None and self.observe is not None:
            uses = batch.columns.get("use") if isinstance(batch, SampleBatch) else None
            if uses is None:
                self.observe(batch)
            elif len(new := np.flatnonzero(uses == 1)):
                self.observe(batch.take(new))  # type: ignore[union-attr]
        return batch

    def rows_of(self, batch: SampleBatch | list[Any]) -> int:
        return rows_in(batch, self._drawn)

    def update(self, priorities: Mapping[str, Any]) -> None:
        self._client.update(priorities)

    def end_batch(self, *, is_last: bool = False) -> None:
        if is_last:
            self._ask()

    def _ask(self) -> None:
        self._figures, self._asked_at, self._is_news = self._client.stats(), time.monotonic(), True

    def report(self, confirmed: int = 0) -> dict[str, Any]:
        """As ``Home.report``; a report says only that there are new counts."""
        if self._is_news:
            self._is_news = False
            self._reported += 1
            self._reports.append(HomeReport(self._reported, [], [], []))
        return super().report(confirmed)

    def count(self) -> int:
        return self._figures.get("count", 0)

    def figures(self) -> dict[str, int] | None:
        return self._figures
