"""The bench of the buffer rules: makes buffers and numbered rows, and limits waiting times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves
from dingsdk.testing.expect import RuleBroken, expect, expect_equal
from dingsdk.testing.runner import RuleBench
from dingsdk.worker.replay_buffer import IBuffer

CAPACITY = 6
"""Capacity of the buffers in most rules; small, so that a few rows wrap around."""

MakeBuffer = Callable[[Mapping[str, Any]], IBuffer]


class BufferBench(RuleBench[MakeBuffer]):
    """The bench of a buffer.

    ``make(cfg)`` returns a new buffer; ``cfg`` overrides the settings that the tester chose.
    """

    def buffer(self, *numbers: int, **cfg: Any) -> Any:
        """Return a new buffer of capacity ``CAPACITY`` and seed 0, with rows of these numbers.

        It is typed as Any, because its capabilities add members that ``IBuffer`` does not have.
        """
        buffer = self.keep(self._make({"replay_buffer_size": CAPACITY, "seed": 0, **cfg}))
        # In several pushes, so that the oldest row of a full buffer is not always at position 0.
        for start in range(0, len(numbers), 4):
            self.push(buffer, *numbers[start : start + 4])
        return buffer

    def build(self) -> Any:
        return self.keep(self._make({}))

    def rows(self, *numbers: int) -> list[Any]:
        """Return fresh rows of these numbers, as a list to push."""
        if self.has("episodes"):
            return [SampleBatch.from_rows([self.row(n)] * episode_length(n)) for n in numbers]
        return [self.row(n) for n in numbers]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a part under test needs; rows have them."""
        found: tuple[str, ...] = getattr(self._make, "needs_columns", ())
        return found

    def row(self, number: int, done: bool = False) -> dict[str, Any]:
        """Return the transition with a number."""
        return make_row(number, done, self.columns)

    def batch(self, *numbers: int) -> Any:
        """Return new rows of these numbers, as columns unless rows are episodes."""
        rows = self.rows(*numbers)
        return rows if self.has("episodes") else SampleBatch.from_rows(rows)

    def push(self, buffer: Any, *numbers: int) -> None:
        """Push one row for each number."""
        if numbers:
            buffer.push(self.batch(*numbers), 0)

    def sample(self, buffer: Any, size: int, iteration: int = 0, **options: Any) -> Any:
        """Return a batch of ``size`` rows; for sequences, ``size`` sequences of one step."""
        if self.has("sequences"):
            return flat(buffer.sample(size, 1, iteration, **options))
        return buffer.sample(size, iteration, **options)

    def draw(self, buffer: Any, size: int, **options: Any) -> list[int]:
        """Sample ``size`` rows; return their numbers. Raises RuleBroken if there is no batch."""
        numbers = numbers_of(self.sample(buffer, size, **options))
        expect_equal(len(numbers), size, f"rows of a batch of {size}")
        return numbers

    def drawn(
        self, buffer: Any, size: int, expected: Collection[int] = (), **options: Any
    ) -> list[int]:
        """Return the sorted numbers of 200 batches, or of fewer that have all ``expected``."""
        found: set[int] = set()
        for _ in range(200):
            found.update(self.draw(buffer, size, **options))
            if found == expected:
                break
        return sorted(found)

    def draws(self, buffer: Any, size: int = 2, times: int = 8) -> list[list[int]]:
        """Draw several batches; return the numbers of their rows."""
        return [self.draw(buffer, size) for _ in range(times)]

    def contents(self, buffer: Any) -> list[int]:
        """Return the numbers of the rows that a buffer's state holds, oldest first."""
        data = buffer.state_dict()["data"]
        return numbers_of(SampleBatch(data) if isinstance(data, Mapping) else data)

    def held(self, buffer: Any, pushed: Sequence[int], what: str = "") -> list[int]:
        """Return the numbers of the pushed rows that must be in the buffer, oldest first."""
        if self.has("fifo"):
            return list(pushed)[-buffer.replay_buffer_size :]
        found = self.contents(buffer)
        expect_equal(len(found), min(len(pushed), buffer.replay_buffer_size), f"rows {what}")
        expect_equal(found, [n for n in pushed if n in found], f"rows {what}, oldest first")
        return found

    def expect_contents(self, buffer: Any, pushed: Sequence[int], what: str) -> None:
        """Expect the state, the count and a sample to match the rows that must be left."""
        expected = self.held(buffer, pushed, what)
        expect_equal(self.contents(buffer), expected, f"rows {what}, oldest first")
        expect_equal(buffer.count(), len(expected), f"count() {what}")
        if expected:
            strange = set(self.draw(buffer, len(expected))) - set(expected)
            expect(not strange, f"rows {sorted(strange)} were drawn {what}")


WIDTH = 64
"""Size of the arrays in a row; large enough that storages with compression compress them."""
EPISODE_LENGTHS = 4
"""The largest length of an episode; the length depends on the episode's number."""


def make_row(number: int, done: bool = False, columns: Iterable[str] = ()) -> dict[str, Any]:
    """Return the transition with a number >= 0; it has arrays, scalars and nested dicts.

    It has ``columns`` too; those that it does not have otherwise are equal to ``number``.
    """
    return {
        **dict.fromkeys(columns, float(number)),
        "id": number,
        "obs": _observation(number),
        "next_obs": _observation(number + 1),
        "reward": number / 2,
        "done": done,
    }


def episode_length(number: int) -> int:
    """Return the length of the episode with this number."""
    return 1 + number % EPISODE_LENGTHS


def number_of(row: Any) -> int:
    """Return the number of a transition or episode.

    Raises:
        RuleBroken: the row is not as it was pushed.
    """
    if isinstance(row, dict) and getattr(row.get("id"), "ndim", 0) == 1:
        row = SampleBatch(row)  # an episode, in the form that states have
    if isinstance(row, (SampleBatch, list)):
        numbers = [number_of(each) for each in row]
        if len(set(numbers)) != 1 or len(numbers) != episode_length(numbers[0]):
            raise RuleBroken(f"an episode came back with the transitions of {numbers}")
        return numbers[0]
    try:
        number = int(row["id"])
        expected = make_row(number)
        is_whole = float(row["reward"]) == expected["reward"] and all(
            np.array_equal(row[name]["pos"], expected[name]["pos"])
            and bool(row[name]["even"]) == expected[name]["even"]
            for name in ("obs", "next_obs")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RuleBroken(f"what came back is no row that was pushed: {row!r:.300}") from error
    if not is_whole:
        raise RuleBroken(f"row {number} came back changed: {row!r:.300}")
    return number


def numbers_of(rows: Iterable[Any] | None) -> list[int]:
    """Return the numbers of all rows of a batch.

    Raises:
        RuleBroken: there is no batch, or a row is not as it was pushed.
    """
    if rows is None:
        raise RuleBroken("a batch was expected, None came")
    return [number_of(row) for row in rows]


def flat(sequences: Any) -> Any:
    """Return the steps of all sequences as one list or batch; None and ``[]`` are unchanged."""
    if isinstance(sequences, SampleBatch):
        steps = sequences.columns["id"].size
        columns = sequences.map(lambda column: column.reshape(-1, *column.shape[2:])).columns
        return SampleBatch.trusted(columns, steps)
    return sequences and [step for sequence in sequences for step in sequence]


def update_of(rows: Sequence[Any], priorities: Iterable[float]) -> dict[str, list[Any]]:
    """Return an update that sets the priorities of sampled rows."""
    keys = ("replay_unique_id", "replay_buffer_idx")
    ids = {key: [int(row[key]) for row in rows] for key in keys}
    return {**ids, "priority": list(priorities)}


def spoil(rows: Iterable[Any]) -> None:
    """Overwrite the values in rows, to check that nothing shares memory with them."""
    if isinstance(rows, SampleBatch):
        for _, column in leaves(rows.columns):
            column[...] = 0 if column.dtype == np.bool_ else 77
        return
    for row in rows:
        if isinstance(row, (SampleBatch, list)):
            spoil(row)
        else:
            for key in ("id", "reward"):
                row[key] = -1
            row["obs"]["even"] = None


def _observation(number: int) -> dict[str, Any]:
    return {"pos": np.full(WIDTH, number, np.float32), "even": number % 2 == 0}
