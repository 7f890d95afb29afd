"""Draws sequences of consecutive rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Count, PartSection, Whole
from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch, torch_to_numpy
from dingsdk.errors import CheckpointCorruptError, SchemaMismatchError
from dingsdk.worker.replay_buffer.interface import MASK
from dingsdk.worker.replay_buffer.kernels import compiled
from dingsdk.worker.replay_buffer.sampler import ENDS, Sampler
from dingsdk.worker.replay_buffer.storage import Rows, Where

_ROUNDS = 4
"""Rounds of drawing starts of sequences; if they do not suffice, all valid starts are listed."""


class SequenceSampler(Sampler):
    """Draws sequences within a trajectory, all valid starts equally likely (type ``sequence``).

    Rows follow each other in the order in which they were pushed. A trajectory ends after a
    row whose ``end`` column is true; before a row whose ``trajectory`` column differs from that of
    the previous row; if rows have no ``end``, after ``block_length`` rows; and where the buffer's
    ``end_trajectory`` was called. A sequence never crosses the end of a trajectory.
    """

    contract_capabilities: ClassVar[frozenset[str] | None] = frozenset({"sequences"})

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``sampler`` of type ``sequence``.

        Attributes:
            stride: Sequences start at every ``stride``-th step of a trajectory.
            burn_in: Rows returned before each sequence, to warm up a recurrent state.
            pad: If False, only sequences with full length and burn-in are drawn. If True, a
                sequence may start at every ``stride``-th step; steps outside the trajectory are
                zeros, and False in the column ``mask``.
            end: Name of the column that is true in the last row of a trajectory.
            trajectory: Name of a column that differs between trajectories, such as an env id, or
                None.
            block_length: Rows of a trajectory if rows have no ``end`` column.
        """

        type: str = "sequence"
        stride: Count = 1
        burn_in: Whole = 0
        pad: bool = False
        end: str = "done"
        trajectory: str | None = None
        block_length: Count = 500

    def __init__(self, cfg: Mapping[str, Any], capacity: int, seed: int | None = None) -> None:
        super().__init__(cfg, capacity, seed)
        section = self.read(cfg, "sampler")
        self.stride: int = section.stride
        self.burn_in: int = section.burn_in
        self.pad: bool = section.pad
        self._end: str = section.end
        self._trajectory: str | None = section.trajectory
        self._block_length: int = section.block_length
        # Steps since the start of the trajectory, by position. Pages never written take no memory.
        self._since = np.zeros(capacity, dtype=np.int32)
        self.clear()

    def clear(self) -> None:
        self._first = self._count = 0  # the position of the oldest row, and how many there are
        self._next_since = 0
        self._numbered = 0  # how many rows were inserted
        # Numbers of rows that begin a trajectory because `end_trajectory` was called before.
        self._begins: deque[int] = deque()
        self._last_trajectory: Any = None
        self._has_end: bool | None = None
        self._listed: tuple[int, NDArray[np.int64]] | None = None

    def check(self, rows: Rows) -> None:
        ends = _column(rows, self._end)
        if self._has_end is not None and self._has_end != (ends is not None):
            with_it, without = f"a value of {self._end!r}", "none"
            found = (with_it, without) if self._has_end else (without, with_it)
            what = f"{self._end!r}, which ends sequences in all rows of a buffer or none"
            raise mismatch(what, self._end, *found)
        if self._trajectory is not None and _column(rows, self._trajectory) is None:
            what = f"sampler.trajectory is {self._trajectory!r}"
            raise mismatch(what, self._trajectory, "a value in every row", "none")
        first = rows.columns if isinstance(rows, SampleBatch) else rows[0]
        if self.pad and isinstance(first, Mapping) and MASK in first:
            hint = "padded samples get a column of that name"
            raise mismatch("a column of the rows", MASK, "another name", MASK, hint)

    def on_insert(
        self, where: Where, rows: Rows, priorities: NDArray[np.float64] | None = None
    ) -> None:
        n = len(rows)
        self._since[where] = self._since_start(rows, n)
        if self._count == 0:
            self._first = where.start if isinstance(where, slice) else int(where[0])
        leaving = max(0, self._count + n - self.capacity)
        self._first = (self._first + leaving) % self.capacity
        self._count += n - leaving
        self._numbered += n
        while self._begins and self._begins[0] <= self._numbered - self._count:
            self._begins.popleft()
        self._listed = None

    def end_trajectory(self) -> None:
        if not self._count:
            self._next_since = 0
        elif not self._begins or self._begins[-1] < self._numbered:
            self._begins.append(self._numbered)

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        ends = np.asarray(state.get("early_ends", ()), np.int64)
        if not len(ends):
            return {}
        return {ENDS: np.isin(np.arange(len(where)), ends)}

    def state_dict(self) -> dict[str, Any]:
        """Return the random state, the step of the oldest row within its trajectory, and ends."""
        first = self._since[self._first] if self._count else self._next_since
        oldest = self._numbered - self._count
        ends = np.array([number - 1 - oldest for number in self._begins], np.int64)
        return {**super().state_dict(), "first_since": int(first), "early_ends": ends}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        first = state.get("first_since")
        if type(first) is not int or not 0 <= first < 2**31:
            raise CheckpointCorruptError(f"first_since is {first!r}; expected a number >= 0")
        ends = np.asarray(state.get("early_ends"))
        is_ascending = ends.ndim == 1 and ends.dtype.kind in "iu" and (np.diff(ends) > 0).all()
        if not is_ascending or (len(ends) and ends[0] < 0):
            raise CheckpointCorruptError(f"early_ends is {ends}; expected ascending numbers >= 0")
        super().load_state_dict(state)
        self._next_since = first
        self._begins.extend((ends + 1).tolist())

    def _since_start(self, rows: Rows, n: int) -> NDArray[np.int64]:
        """Return, for each new row, the steps since its trajectory started."""
        before, starts = self._next_since, np.zeros(n + 1, dtype=np.bool_)
        ends = _column(rows, self._end)
        self._has_end = ends is not None
        if ends is not None:
            starts[1:] = ends
        if self._trajectory is not None:
            ids = _column(rows, self._trajectory)
            assert ids is not None
            starts[1:n] |= ids[1:] != ids[:-1]
            starts[0] = self._last_trajectory is not None and ids[0] != self._last_trajectory
            self._last_trajectory = ids[-1]
        for number in reversed(self._begins):
            if number < self._numbered:
                break
            if number < self._numbered + n:
                starts[number - self._numbered] = True
        index = np.arange(n + 1)
        # The newest start at or before each row; the first rows may continue an earlier push.
        last = np.maximum.accumulate(np.where(starts, index, -before))
        since = index - last
        if ends is None:
            since %= self._block_length
        self._next_since = int(since[-1])
        return since[:-1]

    def count_starts(self, length: int) -> int:
        """Return how many sequences of ``length`` rows could be drawn; reads every row."""
        return len(self._all_starts(length)) if self._count else 0

    def draw(
        self, size: int, length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None] | None:
        """Draw sequences; all valid starts are equally likely, and may be drawn repeatedly.

        Args:
            size: Number of sequences, >= 1.
            length: Rows of each sequence, >= 1, without the burn-in.

        Returns:
            Positions of rows, int64[size, burn_in + length], and a mask of that shape that is False
            outside of the trajectory, or None if all rows are inside. None if there is no valid
            start.
        """
        if self._count == 0:
            return None
        starts = self._draw_starts(size, length)
        if starts is None:
            valid = self._all_starts(length)
            if len(valid) == 0:
                return None
            starts = valid[(self._rng.random(size) * len(valid)).astype(np.int64)]
        if self.pad:
            return self._padded(starts[:, None] + np.arange(-self.burn_in, length), starts)
        where = np.empty((size, self._rows_needed(length)), np.int64)
        _follow(starts, self._first, self.capacity, where)
        return where, None

    def _rows_needed(self, length: int) -> int:
        """Return how many rows must follow from a start on; 0: any start is valid."""
        return 0 if self.pad else self.burn_in + length

    def _draw_starts(self, size: int, length: int) -> NDArray[np.int64] | None:
        """Draw rows and keep those that lead to a valid start; None if too few do."""
        # Every row from a valid start to the next one leads to that start, so a stride costs few
        # draws. With padding only the start itself does, as its trajectory may end after it.
        leading = max(1, min(self.stride, self._rows_needed(length)))
        starts = np.empty(size, dtype=np.int64)
        found, wanted = 0, size + size // 4 + 4
        for _ in range(_ROUNDS):
            found += self._accept(length, leading, self._rng.random(wanted), starts[found:])
            if found == size:
                return starts
            wanted *= 4
        return None

    def _all_starts(self, length: int) -> NDArray[np.int64]:
        """Return the ages of all valid starts; cached until rows are added or leave."""
        if self._listed is None or self._listed[0] != length:
            starts = np.empty(self._count, np.int64)
            # Draw each row once.
            found = self._accept(length, 1, (np.arange(self._count) + 0.5) / self._count, starts)
            self._listed = length, starts[:found]
        return self._listed[1]

    def _accept(
        self, length: int, leading: int, uniforms: NDArray[np.float64], starts: NDArray[np.int64]
    ) -> int:
        span = self._rows_needed(length) - 1
        first, count = self._first, self._count
        return _accept(self._since, first, count, self.stride, leading, span, uniforms, starts)

    def _padded(
        self, ages: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        held = np.clip(ages, 0, self._count - 1)
        begun = self._since.take(self._positions(starts))[:, None]
        steps = self._since.take(self._positions(held)) - begun
        mask = (held == ages) & (steps == ages - starts[:, None])
        return self._positions(np.where(mask, ages, starts[:, None])), mask

    def _positions(self, ages: NDArray[np.int64]) -> NDArray[np.int64]:
        where = ages + self._first
        np.subtract(where, self.capacity, out=where, where=where >= self.capacity)
        return where


def _column(rows: Rows, name: str) -> NDArray[Any] | None:
    """Return one value a row, or None if the rows have no such key.

    Raises:
        SchemaMismatchError: only some rows have the key, or a row has more than one value.
    """
    if isinstance(rows, SampleBatch):
        column = rows.columns.get(name)
        if column is None or isinstance(column, dict):
            return None
        if column.size != len(rows):
            raise _not_one_value(name, list(column.shape))
        flat: NDArray[Any] = column.reshape(-1)
        return flat
    values = [row.get(name) if isinstance(row, Mapping) else None for row in rows]
    if missing := sum(value is None for value in values):
        if missing == len(values):
            return None
        raise _not_one_value(name, f"none in {missing} of {len(values)} rows")
    arrays = [np.asarray(torch_to_numpy(value)) for value in values]
    if any(array.size != 1 for array in arrays):
        raise _not_one_value(name, "an array")
    return np.array([array.item() for array in arrays])


def _not_one_value(name: str, found: Any) -> SchemaMismatchError:
    return mismatch(f"{name!r} of sequences", name, "one value a row", found)


@compiled("int64(int32[::1], int64, int64, int64, int64, int64, float64[::1], int64[::1])")
def _accept(
    since: NDArray[np.int32],
    first: int,
    count: int,
    stride: int,
    leading: int,
    span: int,
    uniforms: NDArray[np.float64],
    starts: NDArray[np.int64],
) -> int:
    """Write the ages of the valid starts to which drawn rows lead; return how many there are.

    The ``leading`` rows from a start on lead to it. ``span`` is the number of steps from the first
    to the last row of a sequence; if it is below 0, every start is valid.
    """
    capacity = since.shape[0]
    found = 0
    for i in range(uniforms.shape[0]):
        if found == starts.shape[0]:
            break
        age = np.int64(uniforms[i] * count)
        if stride > 1:
            at = first + age
            step = since[at - capacity if at >= capacity else at] % stride
            if step >= leading or step > age:
                continue
            age -= step
        if span >= 0:
            if age + span >= count:
                continue
            at, end = first + age, first + age + span
            begun = since[at - capacity if at >= capacity else at]
            # Steps increase by one within a trajectory, and start at 0 again in the next one.
            if since[end - capacity if end >= capacity else end] - begun != span:
                continue
        starts[found] = age
        found += 1
    return found


@compiled("void(int64[::1], int64, int64, int64[:, ::1])")
def _follow(starts: NDArray[np.int64], first: int, capacity: int, where: NDArray[np.int64]) -> None:
    """Fill ``where``, int64[n, time], with the consecutive positions from each start (an age)."""
    for i in range(where.shape[0]):
        at = first + starts[i]
        for j in range(where.shape[1]):
            if at >= capacity:
                at -= capacity
            where[i, j] = at
            at += 1
