"""The interfaces of replay buffers and row listeners."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch
from dingsdk.data.columns import leaves

Drawn = Literal["rows", "sequences", "episodes"]
MASK = "mask"
"""The column of padded sequences that is False at padding."""
KEPT = "kept"
"""Name of the fact that is True for a row that has not left early (used up, stale)."""


_MODES = frozenset({"serial", "parallel"})


class Needs:
    """Requirements of a part of a buffer on the samples that it receives."""

    needs_columns: ClassVar[tuple[str, ...]] = ()
    """Columns of samples that it reads; first rows that lack one are refused."""

    modes: ClassVar[frozenset[str]] = _MODES
    """The modes of training that it supports."""


class IBuffer(Configurable, ABC):
    """A replay buffer: collectors push rows, learners sample batches of them.

    Safe for any number of pushing and sampling threads. Constructed as
    ``(cfg, tb_logger=None, exp_name="default_experiment", instance_name="buffer")``, which makes
    no file, folder or thread.
    """

    draws: ClassVar[Drawn] = "rows"
    """What a sample consists of. A run refuses a buffer whose samples its policy cannot train on.

    A buffer of sequences gets the rows of an episode one after the other. A buffer of episodes gets
    each episode as one element.
    """

    modes: ClassVar[frozenset[str]] = _MODES
    """The modes of training that it supports."""

    ignores_priorities: ClassVar[bool] = False
    """Whether ``update`` ignores priorities. A class that overrides ``update`` must set this
    again: it does not inherit the value. A run with priorities refuses a buffer that ignores them.
    """

    @property
    @abstractmethod
    def replay_buffer_size(self) -> int:
        """The capacity in rows."""

    @property
    @abstractmethod
    def push_count(self) -> int:
        """Rows pushed so far, including rows that have left."""

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add rows: all rows of a SampleBatch or a list, or one row of any other type."""

    def end_trajectory(self) -> None:
        """End the trajectory of the newest row: the row that is pushed next does not continue it.

        Call it if rows in between were dropped, or if the next rows come from elsewhere. A buffer
        that does not sample sequences does nothing.
        """

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Store values that training computed for sampled rows, such as priorities."""

    @abstractmethod
    def sample(self, size: int, cur_learner_iter: int) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows as the caller's own copies, or None when that is impossible."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all rows."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows can be sampled."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; any later call raises BufferClosedError."""

    @abstractmethod
    def save_data(self, file: str) -> None:
        """Write all rows to disk, with the state that future samples depend on."""

    @abstractmethod
    def load_data(self, file: str) -> None:
        """Push all rows that :meth:`save_data` wrote.

        If the buffer is empty and has the same settings (the seed may differ), it draws the same
        samples as the saved buffer would have drawn. The rows count as pushed now.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return an independent copy of everything that future samples depend on."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`; if this raises, the buffer is unchanged."""


@dataclass(frozen=True, slots=True)
class BufferStats:
    """Counts of rows since the buffer was made; ``clear`` does not reset them.

    ``pushed`` always equals ``count`` plus the rows that left: ``overwritten + cleared + stale +
    used_up``.
    """

    pushed: int
    sampled: int
    overwritten: int
    cleared: int
    count: int
    capacity: int
    stale: int = 0
    used_up: int = 0

    @property
    def left(self) -> int:
        """Rows that left, for any reason."""
        return self.overwritten + self.cleared + self.stale + self.used_up


class RowListener:
    """Base class for listeners to the rows of a buffer; override the methods that you need."""

    def check(self, rows: Any) -> None:
        """Called before rows are stored; may raise to refuse all of them."""

    def on_insert(self, rows: Any) -> None:
        """Called under the buffer's lock after rows were stored; keep no reference to the rows.

        An exception that it raises is logged. To refuse rows, raise in :meth:`check`.
        """

    def on_remove(self, rows: Any, reason: str) -> None:
        """Called with a copy of rows that left, oldest first.

        It runs outside the lock, after the rows were removed, and may call the buffer. An
        exception that it raises is logged.

        Args:
            rows: A SampleBatch, or a list from object storage.
            reason: ``"overwritten"``, ``"cleared"`` (also for ``close`` and a loaded state),
                ``"stale"`` or ``"used_up"``.
        """

    def on_close(self) -> None:
        """Called after the buffer was closed."""


def rows_in(batch: Any, drawn: str) -> int:
    """Return how many samples a batch has: of ``drawn`` sequences, their rows without padding."""
    if drawn != "sequences":
        return len(batch)
    if not isinstance(batch, SampleBatch):
        return sum(map(len, batch))
    if (mask := batch.columns.get(MASK)) is not None:
        return int(np.count_nonzero(mask))
    _, column = next(leaves(batch.columns))
    return math.prod(column.shape[:2])
