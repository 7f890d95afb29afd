"""The experience of a learner that samples from a replay server: counts only, no rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from dingsdk.worker.coordinator.experience import Experience, Lease
from dingsdk.worker.coordinator.tasks import TaskState
from dingsdk.worker.sample_counts import EVICTIONS, SampleCounts


class _ServerFigures:
    """Replaces the buffer: the last counts that its server reported.

    Attributes:
        figures: Counts of ``BufferStats``; empty before the first report.
        announced_rows: Rows that collectors have inserted.
    """

    def __init__(self) -> None:
        self.figures: Mapping[str, int] = {}
        self.announced_rows = 0

    def columns_needed(self) -> tuple[str, ...]:
        return ()  # the server has the rows themselves

    def add_remove_listener(self, listener: Callable[[Any, str], None]) -> None:
        pass  # the server counts removed rows

    def count(self) -> int:
        return self.figures.get("count", 0)

    def can_push(self, rows: int) -> bool:
        return True  # announced rows are on the server already; its limiter admitted them

    def can_sample(self, size: int) -> bool:
        # There may be rows for a batch; the learner waits for the limiter.
        return self.announced_rows >= size or self.count() >= size

    def state_dict(self) -> dict[str, int]:
        return dict(self.figures)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.figures = dict(state)

    def close(self) -> None:
        pass  # the server is closed by its own process


class ServedExperience(Experience):
    """Counts the rows that collectors insert, and leases batches that the learner draws itself."""

    def __init__(self) -> None:
        self.buffer: _ServerFigures
        super().__init__(_ServerFigures())

    def push(self, meta: Mapping[str, Any], envstep: int) -> bool:
        """Count a payload; the server has already refused repeated rows."""
        self.buffer.announced_rows += int(meta["rows"])
        return True

    def lease(
        self, state: TaskState, batch_size: int, batches: int, train_iter: int
    ) -> dict[str, Any]:
        """Let a learner draw ``batches`` batches; it waits while the server has too few rows."""
        leases = [Lease(batch_size, set(), train_iter)] * batches
        self._leases.setdefault(state.task_id, []).extend(leases)
        return {"batches": [{"batch_size": batch_size}] * batches}

    def settle(self, state: TaskState, info: Mapping[str, Any] | None = None) -> bool:
        """Count the rows that were trained on, and store the server's counts."""
        if info is not None:
            self.note_figures(info.get("replay"))
        return super().settle(state, info)

    def note_figures(self, figures: Mapping[str, int] | None) -> None:
        """Store the counts that the server reported."""
        if figures is not None:
            self.buffer.figures = figures

    def counts(self) -> SampleCounts:
        """Return the sample counts; the server counts the samples of all its clients."""
        figures = self.buffer.figures
        pushed = figures.get("pushed", 0)
        evicted = {name: figures[name] for name in EVICTIONS if figures.get(name)}
        return SampleCounts(pushed, pushed, self.trained_rows, self.count_rows(), evicted)

    def check(self, running: Collection[str] | None = None) -> None:
        """Raise SamplesLostError if the server's counts do not add up."""
        self.counts().check()
