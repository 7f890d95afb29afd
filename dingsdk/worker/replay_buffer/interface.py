"""The contract of replay buffers, and of what follows their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch
from dingsdk.worker.replay_buffer.storage import Rows, Where

Order = Literal["none", "sequence", "episode"]


class Needs:
    """What a buffer, or a part of one, needs of the samples that it is given.

    In parallel mode a buffer holds where its rows are, and not the rows. The columns that are
    named here come with each payload; everything else is left out.
    """

    needs_columns: ClassVar[tuple[str, ...]] = ()
    """Columns of samples that it looks at: numbers, of up to 64 bytes a row together."""

    needs_order: ClassVar[Order] = "none"
    """Whether samples of an episode must follow each other (``sequence``), or come as one element
    (``episode``)."""

    modes: ClassVar[frozenset[str]] = frozenset({"serial", "parallel"})
    """The modes of training that it serves."""


class IBuffer(Needs, Configurable, ABC):
    """A replay buffer: collectors push rows, learners sample batches of them.

    Safe for any number of pushing and sampling threads. Constructed as
    ``(cfg, tb_logger=None, exp_name="default_experiment", instance_name="buffer")``, which makes
    no file, folder or thread.
    """

    ignores_priorities: ClassVar[bool] = False
    """Whether the ``update`` that a class defines beside this does nothing with priorities; not
    inherited by a class with an ``update`` of its own. A run with priorities refuses such a buffer.
    """

    def columns_needed(self) -> tuple[str, ...]:
        """Return ``needs_columns`` of this buffer and of its parts, as they are configured."""
        return self.needs_columns

    def rows_per_sampled(self) -> int:
        """Return how many rows the limiter counts for each element of a sample."""
        return 1

    @property
    @abstractmethod
    def replay_buffer_size(self) -> int:
        """The capacity in rows."""

    @property
    @abstractmethod
    def push_count(self) -> int:
        """Rows pushed so far, those that left included."""

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Add rows: those of a SampleBatch or a list, or one row of any other type."""

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Update what training computed for sampled rows, such as priorities."""

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

        An empty buffer with the same settings (the seed may differ) continues sampling as the
        saved one would have; the rows count as pushed now.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return an independent copy of everything that future samples depend on."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, or raise and stay unchanged."""


@dataclass(frozen=True, slots=True)
class BufferStats:
    """Rows that went through a buffer since it was made (``clear`` does not reset them).

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
    """Follows the rows of a buffer; a subclass overrides what it needs."""

    def check(self, rows: Any) -> None:
        """Called before rows are stored; may raise to refuse all of them."""

    def on_insert(self, rows: Any) -> None:
        """Called under the buffer's lock after rows were stored; they are not to be kept."""

    def on_remove(self, rows: Any, reason: str) -> None:
        """Called with a copy of rows that left, oldest first.

        It runs after the call that removed them, outside the lock, and may call the buffer. What
        it raises is logged.

        Args:
            rows: A SampleBatch, or a list from object storage.
            reason: ``"overwritten"``, ``"cleared"`` (also for ``close`` and a loaded state),
                ``"stale"`` or ``"used_up"``.
        """

    def on_close(self) -> None:
        """Called after the buffer was closed."""


class NoMetadata:
    """The row metadata of a table that keeps none: rows stay until they are overwritten.

    Attributes:
        next_id: The id of the next row, where rows have ids.
        rows_leave_early: Whether rows may leave before they are overwritten.
    """

    keeps_facts: ClassVar[bool] = False
    rows_leave_early = False
    next_id: int

    def count(self, held: int) -> int:
        """Return how many of the rows that the remover holds have not left early."""
        return held

    def living(self, where: Where) -> Where:
        """Return those positions whose rows have not left early."""
        return where

    def prepare(self, rows: Rows) -> tuple[Rows, Any]:
        """Return the rows to store, and what came with them; changes nothing.

        Raises:
            SchemaMismatchError, InvalidPriorityError: rows that cannot be pushed.
        """
        return rows, None

    def insert(self, where: Where, facts: Any) -> None:
        """Add rows that were stored at positions; the rows that were there have left."""

    def remove(self, where: Where) -> None:
        """Forget rows at positions, none of which has left before."""

    def clear(self) -> None:
        """Forget all rows."""

    def facts(self, state: Mapping[str, Any], where: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return what a state says of the rows at positions, as arrays of one value a row."""
        return {}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return views of those arrays of the state that have an entry for each position."""
        return {}

    def state_dict(
        self, positions: int, columns: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, Any]:
        """Return what is known of the rows at positions ``0..positions-1``.

        ``columns`` are copies of ``columns()`` for the state to have; None: it makes its own.
        """
        return {}

    def restored(self, state: Mapping[str, Any], positions: int) -> NoMetadata:
        """Return new metadata with such a state, and the settings of this one.

        Raises:
            CheckpointCorruptError: its entries contradict each other.
        """
        return self
