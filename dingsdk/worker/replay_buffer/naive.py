"""The plain FIFO buffer with uniform sampling."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, ConfigTypeError
from dingsdk.worker.replay_buffer.base import ReplayBuffer

_log = logging.getLogger(__name__)


class NaiveReplayBuffer(ReplayBuffer):
    """A ring of rows, sampled uniformly (type ``naive``).

    Config:
        replay_buffer_size: Capacity in rows.
        storage: ``{type: auto | array | object}``; auto lets the first push decide.
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
        size = _checked_size(size)
        if sample_range is not None and not isinstance(sample_range, slice):
            raise ConfigTypeError(
                f"sample_range must be a slice over ages, found {sample_range!r}",
                path="sample_range",
                expected="slice",
                found=type(sample_range).__name__,
            )
        with self._lock:
            self._check_open()
            if size == 0:
                return []

            def can_serve() -> bool:
                rows = self._remover.count
                if sample_range is not None:
                    rows = len(range(*sample_range.indices(rows)))
                enough = rows > 0 if replace else rows >= size
                return enough and self._limiter.can_sample(size)

            if not can_serve() and not self._wait_for(can_serve, timeout_s):
                _log.debug(
                    "%s cannot give %d of %d rows", self.instance_name, size, self._remover.count
                )
                return None
            batch = self._draw(size, sample_range, replace)
            self._limiter.on_sample(size)
            self._sampled += size
            if self._waiting:
                self._changed.notify_all()
        if self._monitor.is_due():
            self._monitor.report(self.stats())
        return batch

    def _draw(
        self, size: int, sample_range: slice | None, replace: bool
    ) -> SampleBatch | list[Any]:
        count = self._remover.count
        if sample_range is None:
            ranks = self._sampler.draw(count, size, replace)
            where = self._remover.positions(ranks)
        else:
            ages = range(*sample_range.indices(count))
            ranks = self._sampler.draw(len(ages), size, replace)
            where = self._remover.by_age(ages.start + ages.step * ranks)
        assert self._storage is not None
        return self._storage.take(where)

    def update(self, info: Mapping[str, Any]) -> None:
        """Do nothing but warn once: uniform sampling has no use for priorities."""
        if not self._warned_of_update:
            self._warned_of_update = True
            _log.warning(
                "%s samples uniformly and ignores update(); use another buffer type for priorities",
                self.instance_name,
            )


def _checked_size(size: Any) -> int:
    if isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer)):
        raise ConfigTypeError(
            f"a sample size is an integer >= 0, found {size!r}",
            path="size",
            expected="int",
            found=type(size).__name__,
        )
    if size < 0:
        raise ConfigError(f"a sample size is an integer >= 0, found {size}", path="size")
    return int(size)
