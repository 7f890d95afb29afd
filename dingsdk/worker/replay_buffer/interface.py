"""What every replay buffer offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dingsdk.config import Configurable
from dingsdk.data import SampleBatch


class IBuffer(Configurable, ABC):
    """A replay buffer: collectors push rows, learners sample batches of them.

    Safe for any number of pushing and sampling threads. Constructed as
    ``(cfg, tb_logger=None, exp_name="default_experiment", instance_name="buffer")``, which makes
    no file, folder or thread.
    """

    gives_rows: ClassVar[bool] = True
    """Whether a sample is rows that were pushed, one each: what parallel mode can serve."""

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
        """Add rows: those of a SampleBatch or a list, or one of any other kind."""

    @abstractmethod
    def update(self, info: Mapping[str, Any]) -> None:
        """Take in what training found out about sampled rows, such as priorities."""

    @abstractmethod
    def sample(self, size: int, cur_learner_iter: int) -> SampleBatch | list[Any] | None:
        """Return ``size`` rows as the caller's own copies, or None when that is impossible."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all rows."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows could be sampled."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; whatever is called afterwards raises BufferClosedError."""

    @abstractmethod
    def save_data(self, file: str) -> None:
        """Write all rows to disk, and what makes future samples what they are."""

    @abstractmethod
    def load_data(self, file: str) -> None:
        """Push all rows that :meth:`save_data` wrote.

        A buffer without rows, of the same settings but for the seed, samples on as the one that
        was saved would have; it counts the rows as pushed now.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return an independent copy of everything that makes future samples what they are."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Become what :meth:`state_dict` described, or raise and stay unchanged."""


@dataclass(frozen=True, slots=True)
class BufferStats:
    """Rows that went through a buffer since it was made (``clear`` does not reset them).

    ``pushed`` is always ``count`` and the rows that left: ``overwritten + cleared + stale +
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
        """Rows that left, for whatever reason."""
        return self.overwritten + self.cleared + self.stale + self.used_up
