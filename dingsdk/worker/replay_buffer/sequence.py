"""The buffer that gives stretches of rows, for policies with a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves, map_columns
from dingsdk.errors import ConfigError
from dingsdk.worker.replay_buffer.naive import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.requests import checked_size
from dingsdk.worker.replay_buffer.sampler import Sampler
from dingsdk.worker.replay_buffer.sampler.sequence import MASK, SequenceSampler, Windows
from dingsdk.worker.replay_buffer.settings import read_count


class SequenceReplayBuffer(NaiveReplayBuffer):
    """A ring of rows that gives sequences of consecutive ones (type ``sequence``).

    Config:
        sequence_length: Rows of a sequence where ``sample`` is not told.
        sampler: ``{type: sequence, stride, burn_in, pad, end, trajectory, block_length}``; see
            :class:`SequenceSampler`.

    The rest is as in :class:`NaiveReplayBuffer`. Push whole pieces of trajectories: rows of
    several envs in turn do not follow each other. Source: DI-engine's
    ``SequenceReplayBuffer``. Differences: sequences end where trajectories do, and blocks of
    fixed length are only for rows without ``done``; columns come as arrays ``[batch, time]``.

    Example:
        >>> buffer = SequenceReplayBuffer({"replay_buffer_size": 100, "seed": 0})
        >>> buffer.push([{"x": i, "done": i == 9} for i in range(20)], 20)
        >>> buffer.sample(2, 4, 0).columns["x"].shape
        (2, 4)
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "sequence",
        "sequence_length": 32,
        "sampler": {"type": "sequence"},
    }
    sampler_family: ClassVar[type[Sampler]] = SequenceSampler
    gives_rows: ClassVar[bool] = False

    def _configure(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        self._length = read_count(cfg, "sequence_length", self.default_config(), "")
        return cfg

    def _begin(self) -> None:
        if not self._remover.reuses_oldest_first:
            raise ConfigError(
                "sequences need a remover that lets the oldest rows go first; choose fifo",
                path="policy.other.replay_buffer.remover.type",
            )
        super()._begin()

    def sample(  # type: ignore[override]
        self,
        batch: int,
        sequence: int | None = None,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> SampleBatch | list[Any] | None:
        """Return ``batch`` sequences, every valid start alike; starts may repeat.

        Args:
            batch: Sequences, >= 0.
            sequence: Rows of each, >= 1; None: as configured.
            cur_learner_iter: Unused here.
            sample_range: Not supported.
            replace: Whether fewer rows than ``batch * sequence`` suffice.
            timeout_s: Seconds to wait until the rows are there; None: not at all.

        Returns:
            A SampleBatch of columns ``[batch, burn_in + sequence, ...]``, with ``mask``
            ``[batch, burn_in + sequence]`` if padded; from object storage a list of lists, the
            padded ones shorter. ``[]`` for no sequences. None where too few rows are there, no
            start is valid, or the limiter does not admit the sample, which counts ``batch *
            sequence`` rows.

        Raises:
            NotImplementedError: a ``sample_range`` is given.
            ConfigError: a number is too small (also a ValueError).
            ConfigTypeError: a number is no integer.
            BufferClosedError: the buffer is closed, or was while waiting.
        """
        if sample_range is not None:
            raise NotImplementedError("a sequence buffer takes no sample_range")
        batch = checked_size(batch)
        length = self._length if sequence is None else checked_size(sequence, "a sequence", 1)
        if batch == 0:
            return self._no_rows()
        return self._serve(batch * length, timeout_s, self._draw_stretches, batch, length, replace)

    def _draw_stretches(
        self, batch: int, length: int, replace: bool
    ) -> SampleBatch | list[Any] | None:
        count = self._remover.count
        if count == 0 or (count < batch * length and not replace):
            return None
        windows = cast(SequenceSampler, self._sampler).draw(batch, length)
        return None if windows is None else self._gather(windows)

    def count_starts(self, sequence: int | None = None) -> int:
        """Return how many sequences of that length could be drawn; looks at every row."""
        length = self._length if sequence is None else checked_size(sequence, "a sequence", 1)
        with self._lock:
            self._check_open()
            return cast(SequenceSampler, self._sampler).count_starts(length)

    def _gather(self, windows: Windows) -> SampleBatch | list[Any]:
        where, mask = windows
        batch, length = where.shape
        if self._sample_monitor.is_next():
            self._look_at_ages(where.reshape(-1))
        if self._storage.takes_grids:  # type: ignore[union-attr]
            grid = self._take(where)
            return grid if mask is None else _masked(cast(SampleBatch, grid).columns, mask)
        rows = self._take(where.reshape(-1))
        if not isinstance(rows, SampleBatch):
            cut = [rows[start : start + length] for start in range(0, batch * length, length)]
            if mask is None:
                return cut
            return [
                [row for row, inside in zip(*pair, strict=True) if inside]
                for pair in zip(cut, mask.tolist(), strict=True)
            ]
        columns = map_columns(lambda a: a.reshape(batch, length, *a.shape[1:]), rows.columns)
        return SampleBatch.trusted(columns, batch) if mask is None else _masked(columns, mask)


def _masked(columns: dict[str, Any], mask: NDArray[np.bool_]) -> SampleBatch:
    """Return sequences with their mask, and zeros where it is False."""
    for _, array in leaves(columns):
        array[~mask] = 0
    return SampleBatch.trusted({**columns, MASK: mask}, len(mask))
