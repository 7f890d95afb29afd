"""Turns the rounds of a batched rollout into train samples, without touching single rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.worker.collector.column_store import ColumnStore

# Far beyond any time, yet two of them still add up within int64.
_NEVER = 1 << 60


class ColumnsWriter:
    """Records rounds in columns and cuts them into trajectory pieces.

    All envs share one time axis; an env's unfinished trajectory is the stretch from its
    start to now. Pieces wait, in the order in which they were cut, until ``flush``.

    Args:
        env_num: Number of envs.
        traj_len: A trajectory is cut when it holds this many transitions; None for only
            at its end.
        make_samples: The policy's ``make_samples``.
    """

    def __init__(
        self,
        env_num: int,
        traj_len: int | None,
        make_samples: Callable[[dict[str, Any], NDArray[np.int64]], SampleBatch],
    ) -> None:
        self._traj_len = _NEVER if traj_len is None else traj_len
        self._make_samples = make_samples
        self._env_num = env_num
        self.level_seeds: Sequence[int] | Mapping[int, int] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all that was recorded."""
        capacity = 64 if self._traj_len == _NEVER else max(64, 2 * self._traj_len)
        self._store = ColumnStore(self._env_num, min(capacity, 4096))
        self._iters = np.empty(self._store.capacity, np.int64)
        self._starts = np.zeros(self._env_num, np.int64)
        self._time = 0
        self._next_full = self._traj_len
        # One entry a piece that waits: lists, because pieces come a few at a time.
        self._piece_envs: list[int] = []
        self._piece_starts: list[int] = []
        self._piece_stops: list[int] = []
        self.pending_rows = 0

    def record(
        self, columns: Mapping[str, Any], train_iter: int, env_ids: NDArray[np.int64] | None
    ) -> None:
        """Append one round for all envs, or for those in ``env_ids``.

        Args:
            columns: What ``make_transitions`` gave, rows as the envs were stepped.
            train_iter: Version of the behaviour policy, kept as the column ``collect_iter``.
            env_ids: int64[n], the env of each row; None for all in order.
        """
        if self._time == self._store.capacity:
            self._make_room()
        self._store.write(self._time, columns, env_ids)
        self._iters[self._time] = train_iter
        self._time += 1

    def drop(self, env_ids: NDArray[np.int64]) -> None:
        """Forget the unfinished trajectories of these envs, the newest round included."""
        self._starts[env_ids] = self._time

    def retire(self, env_ids: NDArray[np.int64]) -> None:
        """Record nothing more of these envs, whose last trajectory was cut or dropped."""
        self._starts[env_ids] = _NEVER

    def cut(self, ended: NDArray[np.int64] | None) -> None:
        """End the trajectories that the newest round ended or filled.

        Args:
            ended: int64[k], ascending: the envs whose episode ended; None for none.
        """
        time = self._time
        if time >= self._next_full:
            is_due = time - self._starts >= self._traj_len
            if ended is not None:
                is_due[ended] = True
            ended = is_due.nonzero()[0]
        if ended is not None and len(ended):
            starts = self._starts[ended].tolist()
            self._piece_envs += ended.tolist()
            self._piece_starts += starts
            self._piece_stops += [time] * len(starts)
            self.pending_rows += time * len(starts) - sum(starts)
            self._starts[ended] = time
        if time >= self._next_full:
            # Starts only grow, so this is never late; between two times it may be early.
            self._next_full = int(self._starts.min()) + self._traj_len

    def cut_unfinished(self) -> None:
        """Cut all trajectories here, as if full; without a ``traj_len`` they are left alone."""
        if self._traj_len == _NEVER:
            return
        self.cut((self._starts < self._time).nonzero()[0])

    def flush(self) -> SampleBatch | None:
        """Convert all pieces that wait; None when there are none. The result is owned."""
        if not self._piece_envs:
            return None
        envs = np.array(self._piece_envs)
        stops = np.array(self._piece_stops)
        lengths = stops - np.array(self._piece_starts)
        ends = lengths.cumsum()
        # Row k of a piece lies at time start + k: one arange, shifted piece by piece.
        times = np.arange(ends[-1]) + (stops - ends).repeat(lengths)
        row_envs = envs.repeat(lengths)
        columns = self._store.gather(times, row_envs)
        extra: dict[str, NDArray[Any]] = {"collect_iter": self._iters.take(times)}
        if self.level_seeds is not None:
            seeds = np.array([self.level_seeds[i] for i in range(self._env_num)], np.int64)
            extra["seed"] = seeds.take(row_envs)
        columns.update(extra)
        self._piece_envs.clear()
        self._piece_starts.clear()
        self._piece_stops.clear()
        self.pending_rows = 0
        self._rewind()
        samples = self._make_samples(columns, ends)
        return _with_missing(samples, extra)

    def _rewind(self) -> None:
        """Start again at the front when no trajectory is unfinished."""
        unfinished = self._starts < self._time
        if not unfinished.any():
            self._starts[self._starts == self._time] = 0
            self._time = 0
            self._next_full = int(self._starts.min()) + self._traj_len

    def _make_room(self) -> None:
        first = min(int(self._starts.min()), self._time, *self._piece_starts)
        # Moving less than half keeps the cost per round constant, and never overlaps.
        if first * 2 < self._store.capacity:
            self._store.grow(self._time)
            self._iters = np.concatenate([self._iters, np.empty_like(self._iters)])
            return
        self._store.move_to_front(first, self._time)
        kept = self._time - first
        self._iters[:kept] = self._iters[first : self._time]
        self._starts[self._starts < _NEVER] -= first
        self._piece_starts = [start - first for start in self._piece_starts]
        self._piece_stops = [stop - first for stop in self._piece_stops]
        self._time = kept
        self._next_full -= first


def _with_missing(samples: SampleBatch, extra: Mapping[str, NDArray[Any]]) -> SampleBatch:
    """Add the columns that ``make_samples`` did not carry over, where rows still match."""
    missing = {key: value for key, value in extra.items() if key not in samples.columns}
    if not missing:
        return samples
    rows = len(samples)
    fitting = {
        # Unrolled samples hold several rows each; the newest row's value stands for them.
        key: value if len(value) == rows else np.full(rows, value[-1])
        for key, value in missing.items()
        if len(value) == rows or key == "collect_iter"
    }
    return samples.with_columns(**fitting)
