"""Limiters: when rows may be pushed into a buffer, and when they may be sampled.

Words: an *insert* is one row pushed, a *sample* one row returned by ``sample`` (a batch of
256 counts 256), a *remove* one row that left. Inserts and samples are counted since the
buffer was created or cleared; removing rows does not take their inserts back. The *size* is
inserts minus removes.

The buffer calls its limiter under its own lock, so a limiter needs none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.config import Configurable
from dingsdk.errors import CheckpointCorruptError, ConfigError
from dingsdk.worker.replay_buffer.settings import read_count, read_positive


class Limiter(Configurable, ABC):
    """Counts inserts, samples and removes, and admits or refuses the next ones."""

    config: ClassVar[dict[str, Any]] = {"type": ""}

    min_size = 1
    """Rows without which nothing is sampled."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.inserts = 0
        self.samples = 0
        self.removes = 0

    @property
    def size(self) -> int:
        """Rows in the buffer."""
        return self.inserts - self.removes

    @abstractmethod
    def can_insert(self, n: int) -> bool:
        """Whether ``n`` rows may be pushed now, all at once."""

    @abstractmethod
    def can_sample(self, n: int) -> bool:
        """Whether ``n`` rows may be sampled now, all at once."""

    def retry_after_s(self) -> float | None:
        """Return in how many seconds time alone may admit what was refused last.

        None, the default: never; only a push, a sample or a removal can.
        """
        return None

    def check_sizes(self, push_rows: int, batch_size: int) -> None:
        """Refuse settings under which pushes and samples of these sizes block each other.

        Raises:
            ConfigError: names the setting and the least value that works.
        """

    def on_insert(self, n: int) -> None:
        """Count ``n`` rows that were pushed."""
        self.inserts += n

    def on_sample(self, n: int) -> None:
        """Count ``n`` rows that were sampled."""
        self.samples += n

    def on_remove(self, n: int) -> None:
        """Count ``n`` rows that left."""
        self.removes += n

    def reset(self) -> None:
        """Start counting anew, as of an empty buffer."""
        self.inserts = self.samples = self.removes = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {"inserts": self.inserts, "samples": self.samples, "removes": self.removes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over counters, also those of another type; changes nothing when they are wrong.

        Entries beyond the three counters are a type's own, so it goes without where they are
        missing: a run may be resumed, or go on, under another limiter.

        Raises:
            CheckpointCorruptError: a counter is missing or no number >= 0.
        """
        self.inserts, self.samples, self.removes = read_counts(
            state, {"inserts": None, "samples": None, "removes": None}
        )


def read_counts(state: Mapping[str, Any], defaults: Mapping[str, int | None]) -> list[int]:
    """Return counters of a state; None for a default means that there is none.

    Raises:
        CheckpointCorruptError: one is missing or no number >= 0.
    """
    counts = [state.get(name, default) for name, default in defaults.items()]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise CheckpointCorruptError(f"limiter counters are wrong: {dict(state)!r:.200}")
    return counts


class MinSizeLimiter(Limiter):
    """Samples once the buffer holds ``min_size`` rows; pushes always (type ``min_size``)."""

    config: ClassVar[dict[str, Any]] = {"type": "min_size", "min_size": 1}

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.min_size = read_count(cfg, "min_size", self.config, "limiter")

    def can_insert(self, n: int) -> bool:
        return True

    def can_sample(self, n: int) -> bool:
        return self.inserts - self.removes >= self.min_size


class SamplesPerInsertLimiter(Limiter):
    """Holds the ratio of samples to inserts near a target (type ``samples_per_insert``).

    With ``owed = inserts * samples_per_insert - samples``, and ``start = min_size *
    samples_per_insert``, which is what is owed when sampling begins:

    * a sample of ``n`` rows is admitted if the size is at least ``min_size`` and ``owed``
      is at least ``start - error_buffer`` after it;
    * a push of ``n`` rows is admitted if the size is below ``min_size``, or ``owed`` is at most
      ``start + error_buffer`` after it.

    Source: Reverb's ``SampleToInsertRatio``. Differences:

    * rows are admitted in whole batches, as they are pushed and sampled;
    * the push that reaches ``min_size`` may pass it, or a large one could block for ever;
    * ``error_buffer`` may be None.

    Config:
        samples_per_insert: > 0, samples drawn per row pushed in the long run.
        min_size: >= 1, rows needed before the first sample.
        error_buffer: > 0, samples by which the ratio may be off in each direction. At least
            ``(push rows * samples_per_insert + batch size) / 2``, as pushes and samples could
            block each other with less; None takes this least value for the largest sizes
            asked for so far.
    """

    config: ClassVar[dict[str, Any]] = {
        "type": "samples_per_insert",
        "samples_per_insert": 1.0,
        "min_size": 1,
        "error_buffer": None,
    }

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self._ratio = read_positive(cfg, "samples_per_insert", self.config, "limiter")
        self.min_size = read_count(cfg, "min_size", self.config, "limiter")
        self._error_buffer = (
            None
            if cfg.get("error_buffer") is None
            else read_positive(cfg, "error_buffer", self.config, "limiter")
        )
        self._largest_push = 0
        self._largest_batch = 0

    def can_insert(self, n: int) -> bool:
        self._largest_push = max(self._largest_push, n)
        if self.size < self.min_size:
            return True
        owed = (self.inserts + n) * self._ratio - self.samples
        return owed <= self.min_size * self._ratio + self._slack()

    def can_sample(self, n: int) -> bool:
        self._largest_batch = max(self._largest_batch, n)
        if self.size < self.min_size:
            return False
        owed = self.inserts * self._ratio - self.samples - n
        return owed >= self.min_size * self._ratio - self._slack()

    def state_dict(self) -> dict[str, Any]:
        largest = {"largest_push": self._largest_push, "largest_batch": self._largest_batch}
        return {**super().state_dict(), **largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        largest = read_counts(state, {"largest_push": 0, "largest_batch": 0})
        super().load_state_dict(state)
        self._largest_push, self._largest_batch = largest

    def check_sizes(self, push_rows: int, batch_size: int) -> None:
        # A push is refused above start + slack - push_rows * ratio, a sample below
        # start - slack + batch_size: with a gap between, both could be refused at once.
        least = (push_rows * self._ratio + batch_size) / 2
        if self._error_buffer is not None and self._error_buffer < least:
            raise ConfigError(
                f"limiter.error_buffer is {self._error_buffer}: with pushes of {push_rows} rows, "
                f"batches of {batch_size} and {self._ratio} samples per insert, pushing and "
                f"sampling could block each other; set it to at least {least}",
                path="limiter.error_buffer",
                least=least,
            )

    def _slack(self) -> float:
        if self._error_buffer is not None:
            return self._error_buffer
        return (self._largest_push * self._ratio + self._largest_batch) / 2
