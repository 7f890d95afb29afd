"""The plain FIFO buffer with uniform sampling."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer.base import ReplayBuffer
from dingsdk.worker.replay_buffer.requests import check_range, checked_size
from dingsdk.worker.replay_buffer.sampler import RowSampler, Sampler
from dingsdk.worker.replay_buffer.storage import Rows

_log = logging.getLogger(__name__)


class NaiveReplayBuffer(ReplayBuffer):
    """A ring of rows, sampled uniformly (type ``naive``).

    Config:
        replay_buffer_size: Capacity in rows.
        storage: ``{type: auto | array | object | memmap}``; auto lets the first push decide.
        sampler: ``{type: uniform}``.
        remover: ``{type: fifo}``.
        limiter: ``{type: min_size, min_size}`` or ``{type: samples_per_insert, ...}``.
        deepcopy: Whether object storage copies rows through and through.
        seed: Of the draws; None takes one from the operating system.
        periodic_thruput_seconds: How often the throughput is logged.

    Source: DI-engine's ``NaiveReplayBuffer``. Differences: rows are copied in and out;
    ``sample_range`` counts by age; a state holds copies, and the random state too.

    Example:
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push([{"obs": np.zeros(4, np.float32), "reward": 1.0}], 1)
        >>> len(buffer.sample(1, 0))
        1
        >>> buffer.sample(2, 0) is None
        True
    """

    config: ClassVar[dict[str, Any]] = {"type": "naive"}
    sampler_family: ClassVar[type[Sampler]] = RowSampler

    _warned_of_update = False

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows drawn uniformly, as the caller's own copies.

        Args:
            size: Rows to draw, >= 0.
            cur_learner_iter: Unused here.
            sample_range: Draw only among these, by age: ``slice(-10, None)`` are the 10 newest.
            replace: Whether a row may come more than once.
            timeout_s: Seconds to wait until the rows are there; None: not at all.

        Returns:
            A SampleBatch, or a list from object storage; ``[]`` for size 0; None where there
            are too few rows, or the limiter does not admit the sample (yet).

        Raises:
            ConfigError: the size is negative (also a ValueError).
            ConfigTypeError: the size is no integer, or the range no slice.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        size = checked_size(size)
        check_range(sample_range)
        if size == 0:
            return self._no_rows()

        return self._serve(size, timeout_s, self._draw, size, sample_range, replace)

    def _draw(self, size: int, sample_range: slice | None, replace: bool) -> Rows | None:
        ages = self._ages(sample_range)
        population = self._remover.count if ages is None else len(ages)
        if population < size and not (replace and population):
            return None
        ranks = cast(RowSampler, self._sampler).draw(population, size, replace)
        if ages is None:
            where = self._remover.positions(ranks)
        else:
            where = self._remover.by_age(ages.start + ages.step * ranks)
        if self._sample_monitor.is_next():
            self._look_at_ages(where)
        return self._take(where)

    def _look_at_ages(self, where: NDArray[np.int64]) -> None:
        newer = self._remover.newer(where)
        self._look_at({} if newer is None else {"age": newer}, len(where))

    def _ages(self, sample_range: slice | None) -> range | None:
        """Return the ages of the rows to draw among, None for all."""
        return None if sample_range is None else range(*sample_range.indices(self._remover.count))

    def update(self, info: Mapping[str, Any]) -> None:
        """Do nothing but warn once: uniform sampling has no use for priorities."""
        if not self._warned_of_update:
            self._warned_of_update = True
            _log.warning(
                "%s samples uniformly and ignores update(); use another buffer type for priorities",
                self.instance_name,
            )
