"""Limiters: when rows may be pushed into a buffer, and when they may be sampled.

Terms: an *insert* is one pushed row, a *sample* is one row returned by ``sample`` (a batch of
256 counts as 256). Both are counted since the buffer was created or cleared; rows that leave do
not reduce the inserts. The *size* is how many rows the buffer holds.

The buffer calls its limiter under its own lock, so a limiter needs no lock. If the buffer has too
few rows for a sample that the limiter admits, it admits the next push without asking the limiter.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from dingsdk.config import (
    LARGEST_INT,
    Configurable,
    Count,
    Finite,
    NotNegative,
    PartSection,
    Section,
)
from dingsdk.errors import CheckpointCorruptError

_FORGOTTEN = 0.01
"""A decayed count below this is treated as zero. One row decays to it in one window."""
_ROUNDING = 1e-6
"""By how much a number of rows times a ratio may be off."""


class Limiter(Configurable, ABC):
    """Counts inserts and samples, and admits or refuses the next ones.

    Constructed with the ``limiter`` section of the buffer's config and a seed for random choices.

    Attributes:
        inserts, samples: The counts.
        size: Rows in the buffer. A push adds to it; the buffer sets it when rows leave.
    """

    Config: ClassVar[type[Section]] = PartSection

    counts: ClassVar[Mapping[str, type[int | float]]] = {"inserts": int, "samples": int}
    """Names and types of the attributes that the state contains; all are numbers >= 0."""
    min_size = 1
    """Rows that the buffer must hold before anything is sampled."""

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        self.inserts = 0
        self.samples = 0
        self.size = 0

    def can_insert(self, n: int) -> bool:
        """Whether ``n`` rows may be pushed now, all at once; True if not overridden."""
        return True

    @abstractmethod
    def can_sample(self, n: int) -> bool:
        """Whether ``n`` rows may be sampled now, all at once."""

    def retry_after_s(self) -> float | None:
        """Return the seconds after which the refused request may be admitted without other changes.

        None, the default: it can be admitted only after a push, a sample or a removal.
        """
        return None

    def on_insert(self, n: int) -> None:
        """Count ``n`` rows that were pushed."""
        self.inserts += n
        self.size += n

    def on_sample(self, n: int) -> None:
        """Count ``n`` rows that were sampled."""
        self.samples += n

    def reset(self) -> None:
        """Start counting again, for an empty buffer."""
        for name, kind in self.counts.items():
            setattr(self, name, kind())
        self.size = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: getattr(self, name) for name in self.counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore counts; change nothing if they are wrong.

        The state may come from another type of limiter, as a run may be resumed with another one.
        Counts other than ``inserts`` and ``samples`` may be missing, and are then 0.

        Raises:
            CheckpointCorruptError: ``inserts`` or ``samples`` is missing, or a count is not a
                number >= 0.
        """
        found: dict[str, Any] = {}
        for name, kind in self.counts.items():
            count = found[name] = state.get(name, None if name in Limiter.counts else kind())
            if type(count) is not kind or not 0 <= count < math.inf:
                raise CheckpointCorruptError(f"limiter counters are wrong: {dict(state)!r:.200}")
        for name, count in found.items():
            setattr(self, name, count)


class MinSizeLimiter(Limiter):
    """Admits all pushes, and samples once there are ``min_size`` rows (type ``min_size``)."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``limiter`` of type ``min_size``.

        Attributes:
            min_size: Rows needed before the first sample.
        """

        type: str = "min_size"
        min_size: Count = 1

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        super().__init__(cfg, seed)
        self.min_size = self.read(cfg, "limiter").min_size

    def can_sample(self, n: int) -> bool:
        return self.size >= self.min_size


class SamplesPerInsertLimiter(Limiter):
    """Holds the ratio of samples to inserts near a target (type ``samples_per_insert``).

    Let ``owed = inserts * samples_per_insert - samples``, and let ``start = min_size *
    samples_per_insert`` be its value when sampling begins:

    * a sample of ``n`` rows is admitted if the size is at least ``min_size`` and ``owed`` after
      the sample is at least ``start - samples_ahead``;
    * a push of ``n`` rows is admitted if the size is below ``min_size``, or ``owed`` after the
      push is at most ``start + error_buffer``;
    * without an ``error_buffer``, a push is also admitted if the size is below the largest batch so
      far, and the rows that are pushed before a batch can be sampled count for ``min_size``.

    Source: Reverb's ``SampleToInsertRatio``. Differences:

    * rows are admitted in whole batches, as they are pushed and sampled;
    * the push that reaches ``min_size`` may exceed it; otherwise a large push could block forever;
    * ``error_buffer`` may be None.

    """

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``limiter`` of type ``samples_per_insert``.

        Attributes:
            samples_per_insert: Rows sampled per row pushed in the long run.
            min_size: Rows needed before the first sample.
            error_buffer: Samples by which the ratio may be off in each direction. With less than
                ``(push rows * samples_per_insert + batch size) / 2``, pushes and samples could
                block each other. None uses this minimum, for the largest push and batch so far.
            samples_ahead: Samples by which sampling may be ahead of the ratio; None uses
                ``error_buffer``. If ``samples_ahead + error_buffer`` is less than ``push rows *
                samples_per_insert + batch size``, pushes and samples could block each other.
        """

        type: str = "samples_per_insert"
        samples_per_insert: Finite = 1.0
        min_size: Count = 1
        error_buffer: Finite | None = None
        samples_ahead: NotNegative | None = None

    counts: ClassVar[Mapping[str, type[int | float]]] = {
        **Limiter.counts,
        "largest_push": int,
        "largest_batch": int,
        "first_inserts": int,
    }

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        super().__init__(cfg, seed)
        section = self.read(cfg, "limiter")
        self._ratio: float = section.samples_per_insert
        self.min_size = section.min_size
        self._error_buffer: float | None = section.error_buffer
        self._samples_ahead: float | None = section.samples_ahead
        self.largest_push = self.largest_batch = self.first_inserts = 0

    def can_insert(self, n: int) -> bool:
        self.largest_push = max(self.largest_push, n)
        if self._is_too_small():
            return True
        owed = (self.inserts + n) * self._ratio - self.samples
        first = max(self.min_size, self.first_inserts)
        return owed <= first * self._ratio + self._slack() + _ROUNDING

    def can_sample(self, n: int) -> bool:
        self.largest_batch = max(self.largest_batch, n)
        if self.size < self.min_size:
            return False
        owed = self.inserts * self._ratio - self.samples - n
        ahead = self._slack() if self._samples_ahead is None else self._samples_ahead
        return owed >= self.min_size * self._ratio - ahead

    def on_insert(self, n: int) -> None:
        if self._error_buffer is None and not self.samples and self._is_too_small():
            self.first_inserts = self.inserts + n
        super().on_insert(n)

    def _is_too_small(self) -> bool:
        # A batch of more rows than are stored cannot be sampled, so both sides would wait.
        least = self.largest_batch if self._error_buffer is None else 0
        return self.size < max(self.min_size, least)

    def _slack(self) -> float:
        if self._error_buffer is not None:
            return self._error_buffer
        return (self.largest_push * self._ratio + self.largest_batch) / 2


class PushSampleRateLimiter(Limiter):
    """Limits recently pushed rows per recently sampled row (type ``push_sample_rate``).

    ``pushed`` and ``sampled`` are counts of rows that decay to 1 % in one window.

    * A push of ``n`` rows is admitted if ``(pushed + n) / sampled <= max``, or if ``sampled``
      has decayed to zero.
    * A sample of ``n`` rows is admitted if ``pushed / (sampled + n) >= min`` and the buffer
      holds ``sample_min_limit_ratio * n`` rows.

    Source: the throughput controller of DI-engine's advanced buffer. Differences:

    * a refused push waits or raises BufferFullError; DI-engine drops it silently;
    * if the earlier pushes have decayed to zero, a push is also admitted if it is at most ``max``
      times all rows sampled so far (a sample likewise, with ``min``); otherwise a push that is
      large compared to the rows of a window would never be admitted;
    * a push is also admitted while a sample of the last requested size would be refused;
      otherwise both sides could wait for each other.
    """

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"bounded", "timed"})
    # In a long window, a test on a busy machine takes too little time to change an answer.
    contract_config: ClassVar[Mapping[str, Any]] = {
        "max": 2.0,
        "min": 0.5,
        "window_seconds": 3600.0,
    }

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``limiter`` of type ``push_sample_rate``.

        Attributes:
            max: Most rows pushed per row sampled, >= ``min`` and > 0; infinity for no limit.
            min: Fewest rows pushed per row sampled, finite.
            window_seconds: Seconds in which a count decays to 1 %.
            sample_min_limit_ratio: Rows that the buffer must hold for each row of a sample.
        """

        type: str = "push_sample_rate"
        max: NotNegative = math.inf
        min: NotNegative = 0.0
        window_seconds: Finite = 30.0
        sample_min_limit_ratio: Annotated[float, Meta(ge=1, le=LARGEST_INT)] = 1.0

        def __post_init__(self) -> None:
            if not (self.min <= self.max and self.max > 0 and math.isfinite(self.min)):
                raise ValueError(
                    f"max is {self.max} and min {self.min}; they bound rows pushed per row "
                    "sampled, so 0 <= min <= max, max > 0 and min is finite"
                )

    counts: ClassVar[Mapping[str, type[int | float]]] = {
        **Limiter.counts,
        "recent_inserts": float,
        "recent_samples": float,
        "last_asked": int,
    }

    def __init__(
        self,
        cfg: Mapping[str, Any],
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cfg, seed)
        section = self.read(cfg, "limiter")
        self._max: float = section.max
        self._min: float = section.min
        self._window_s: float = section.window_seconds
        self._fill: float = section.sample_min_limit_ratio
        self._clock = clock
        self._since_s = clock()
        self.recent_inserts = self.recent_samples = 0.0
        self.last_asked = 0

    def can_insert(self, n: int) -> bool:
        self._decay()
        if self.recent_samples < _FORGOTTEN:
            return True
        if self.recent_inserts + n <= self._max * self.recent_samples:
            return True
        if self.recent_inserts < _FORGOTTEN and n <= self._max * self.samples:
            return True
        return not self._admits_sample(self.last_asked)

    def can_sample(self, n: int) -> bool:
        self.last_asked = n
        self._decay()
        return self._admits_sample(n)

    def _admits_sample(self, n: int) -> bool:
        if self.size < self._fill * n:
            return False
        if self.recent_inserts >= self._min * (self.recent_samples + n):
            return True
        return self.recent_samples < _FORGOTTEN and self.inserts >= self._min * n

    def retry_after_s(self) -> float | None:
        # Both counts decay at the same rate, so their ratio is constant until one of them is
        # treated as zero. Time alone admits nothing before that.
        self._decay()
        known = [n for n in (self.recent_inserts, self.recent_samples) if n >= _FORGOTTEN]
        if not known:
            return None
        return self._window_s * math.log(min(known) / _FORGOTTEN) / math.log(100) + 1e-6

    def on_insert(self, n: int) -> None:
        super().on_insert(n)
        self._decay()
        self.recent_inserts += n

    def on_sample(self, n: int) -> None:
        super().on_sample(n)
        self._decay()
        self.recent_samples += n

    def state_dict(self) -> dict[str, Any]:
        self._decay()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._since_s = self._clock()

    def _decay(self) -> None:
        now_s = self._clock()
        factor = 0.01 ** ((now_s - self._since_s) / self._window_s)
        self._since_s = now_s
        self.recent_inserts *= factor
        self.recent_samples *= factor
