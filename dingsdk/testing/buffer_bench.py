"""The bench that a rule of the buffers works at: fresh buffers, numbered rows, and patience."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dingsdk.data import SampleBatch
from dingsdk.testing.bench import Call, RuleBench, expect, expect_equal, raises
from dingsdk.testing.buffer_rows import flat, make_episode, make_row, numbers_of
from dingsdk.worker.replay_buffer import IBuffer

__all__ = ["BufferBench", "Call", "expect", "expect_equal", "raises"]

CAPACITY = 6
"""Of the buffers of most rules: small, so that a few rows wrap around."""

MakeBuffer = Callable[[Mapping[str, Any]], IBuffer]


class BufferBench(RuleBench[MakeBuffer]):
    """The bench of a buffer.

    ``make`` returns a fresh one with the settings that it is given, over those that the buffer
    is tested with.
    """

    def __init__(
        self, make: MakeBuffer, folder: Path, capabilities: Collection[str], patience_s: float
    ) -> None:
        super().__init__(make, folder, capabilities, patience_s)
        self._buffers: list[Any] = []

    def _close(self, error: BaseException | None) -> None:
        for buffer in self._buffers:
            Call(buffer.close, "close()").value(self.patience_s)

    # Buffers ----------------------------------------------------------------------------------
    def buffer(self, *numbers: int, **cfg: Any) -> Any:
        """Return a fresh buffer of ``CAPACITY`` rows and seed 0, holding rows of these numbers.

        What it is typed as has the members beyond ``IBuffer`` that the capabilities promise.
        """
        buffer = self._make({"replay_buffer_size": CAPACITY, "seed": 0, **cfg})
        self.keep(buffer)
        # In pieces, so that more rows than the capacity leave the seam somewhere inside.
        for start in range(0, len(numbers), 4):
            self.push(buffer, *numbers[start : start + 4])
        return buffer

    def keep(self, buffer: Any) -> None:
        """Close a buffer in the end."""
        self._buffers.append(buffer)

    def rows(self, *numbers: int) -> list[Any]:
        """Return fresh rows of these numbers, as a list to push."""
        return [make_episode(n) if self.has("episodes") else make_row(n) for n in numbers]

    def batch(self, *numbers: int) -> Any:
        """Return fresh rows of these numbers, as columns where rows are no episodes."""
        rows = self.rows(*numbers)
        return rows if self.has("episodes") else SampleBatch.from_rows(rows)

    def push(self, buffer: Any, *numbers: int) -> None:
        """Push one row for each number."""
        if numbers:
            buffer.push(self.batch(*numbers), 0)

    # Reading ----------------------------------------------------------------------------------
    def sample(self, buffer: Any, size: int, **options: Any) -> Any:
        """Return a batch of ``size`` rows; of sequences, ``size`` of one step each."""
        if self.has("sequences"):
            return flat(buffer.sample(size, 1, 0, **options))
        return buffer.sample(size, 0, **options)

    def draw(self, buffer: Any, size: int, **options: Any) -> list[int]:
        """Return the numbers of a batch that must come, whole and of the right size."""
        numbers = numbers_of(self.sample(buffer, size, **options))
        expect_equal(len(numbers), size, f"rows of a batch of {size}")
        return numbers

    def draws(self, buffer: Any, size: int = 2, times: int = 8) -> list[list[int]]:
        """Draw several batches; return the numbers of their rows."""
        return [self.draw(buffer, size) for _ in range(times)]

    def contents(self, buffer: Any) -> list[int]:
        """Return the numbers of the rows that a buffer's state holds, oldest first."""
        return self.numbers_in(buffer.state_dict())

    @staticmethod
    def numbers_in(state: Mapping[str, Any]) -> list[int]:
        """Return the numbers of the rows in a buffer's state, oldest first."""
        data = state["data"]
        return numbers_of(SampleBatch(data) if isinstance(data, Mapping) else data)

    def expect_contents(self, buffer: Any, numbers: Collection[int], what: str) -> None:
        """Expect exactly these rows, oldest first, in the state, the count and the draws."""
        expected = list(numbers)
        expect_equal(self.contents(buffer), expected, f"rows {what}, oldest first")
        expect_equal(buffer.count(), len(expected), f"count() {what}")
        if expected:
            strange = set(self.draw(buffer, len(expected))) - set(expected)
            expect(not strange, f"rows {sorted(strange)} were drawn {what}")

    # Threads ----------------------------------------------------------------------------------
    def together(self, *jobs: Callable[[], Any]) -> list[Any]:
        """Run calls at the same time, each in a thread; return what they returned.

        Raises what one of them raised, and RuleBroken where one does not end.
        """
        start = threading.Barrier(len(jobs))

        def begin(job: Callable[[], Any]) -> Any:
            start.wait(self.patience_s)
            return job()

        calls = [Call(partial(begin, job), f"thread {n}") for n, job in enumerate(jobs)]
        return [call.value(4 * self.patience_s) for call in calls]
