"""The experience of a learner that samples from a replay server: figures, and no rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from dingsdk.worker.coordinator.experience import Experience, Lease
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.sample_counts import SampleCounts

LEFT = ("overwritten", "cleared", "stale", "used_up")
"""Counts of ``BufferStats`` that are of rows that left."""


class _ServerFigures:
    """What stands in for the buffer: what its server last said of it.

    Attributes:
        figures: Counts of ``BufferStats``; empty before the first.
        announced_rows: Rows that collectors have inserted.
    """

    def __init__(self) -> None:
        self.figures: Mapping[str, int] = {}
        self.announced_rows = 0

    def columns_needed(self) -> tuple[str, ...]:
        return ()  # the server sees the rows themselves

    def add_remove_listener(self, listener: Callable[[Any, str], None]) -> None:
        pass  # the server counts what leaves

    def count(self) -> int:
        return self.figures.get("count", 0)

    def can_push(self, rows: int) -> bool:
        return True  # what is announced is with the server, whose limiter admitted it

    def can_sample(self, size: int) -> bool:
        # There may be rows for a batch; the learner waits for the limiter.
        return self.announced_rows >= size or self.count() >= size

    def state_dict(self) -> dict[str, int]:
        return dict(self.figures)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.figures = dict(state)

    def close(self) -> None:
        pass  # the server is another's


class ServedExperience(Experience):
    """Counts what collectors insert, and grants batches that the learner draws by itself."""

    def __init__(self) -> None:
        self.buffer: _ServerFigures
        super().__init__(_ServerFigures())

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Count a payload; the server has refused repeats of its rows."""
        self.buffer.announced_rows += int(meta["rows"])
        return True

    def lease(
        self, state: TaskState, batch_size: int, batches: int, train_iter: int
    ) -> dict[str, Any]:
        """Let a learner draw ``batches`` batches; it waits where the server has too few rows."""
        leases = [Lease(batch_size, set(), train_iter)] * batches
        self._leases.setdefault(state.task_id, []).extend(leases)
        return {"batches": [{"batch_size": batch_size}] * batches}

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """Count what was trained on, and take the server's figures over."""
        if info is not None:
            self.note_figures(info.get("replay"))
        return super().settle(state, info)

    def note_figures(self, figures: Mapping[str, int] | None) -> None:
        """Take over what the server said of its buffer."""
        if figures is not None:
            self.buffer.figures = figures

    def counts(self) -> SampleCounts:
        """What became of the samples, as the server counts those of all its clients."""
        figures = self.buffer.figures
        pushed = figures.get("pushed", 0)
        evicted = {name: figures[name] for name in LEFT if figures.get(name)}
        return SampleCounts(pushed, pushed, self.trained_rows, self.count_rows(), evicted)

    def check(self, running: Collection[str] | None = None) -> None:
        """Raise SamplesLostError where the server has lost count of rows."""
        self.counts().check()
