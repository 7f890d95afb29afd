"""Counts of the samples of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dingsdk.errors import SamplesLostError

EVICTIONS = ("overwritten", "cleared", "stale", "used_up")
"""Fields of ``BufferStats`` that count removed rows."""


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """Counts of the samples of a run, from the collectors to the learner.

    Samples that were collected but not acknowledged wait for room in the replay buffer, or their
    collector was lost before. Each acknowledged sample is in the buffer, or is counted in
    ``evicted`` with the reason why it left.

    Attributes:
        collected: Samples that collectors have announced.
        acknowledged: Collected samples that were made available for training.
        trained: Samples that were drawn and trained on; a sample counts each time that it is drawn.
            A policy may train on it in several epochs. Padding of sequences does not count.
        live: Samples in the replay buffer; if it is closed, the samples that it held before.
        evicted: Samples that left the buffer, by reason.
        preloaded: Demonstrations that were pushed into the buffer before the first collect; they
            are among ``live`` and ``evicted``. 0 in parallel mode, which counts none of them.
    """

    collected: int = 0
    acknowledged: int = 0
    trained: int = 0
    live: int = 0
    evicted: Mapping[str, int] = field(default_factory=dict)
    preloaded: int = 0

    def __add__(self, other: SampleCounts) -> SampleCounts:
        evicted = dict(self.evicted)
        for reason, rows in other.evicted.items():
            evicted[reason] = evicted.get(reason, 0) + rows
        return SampleCounts(
            self.collected + other.collected,
            self.acknowledged + other.acknowledged,
            self.trained + other.trained,
            self.live + other.live,
            evicted,
            self.preloaded + other.preloaded,
        )

    @property
    def unacknowledged(self) -> int:
        """Collected samples that are not acknowledged (yet)."""
        return self.collected - self.acknowledged

    def check(self) -> None:
        """Raise SamplesLostError unless every acknowledged sample is accounted for."""
        evicted = sum(self.evicted.values())
        came = self.acknowledged + self.preloaded
        if came != self.live + evicted or self.unacknowledged < 0:
            preloaded = f"{self.preloaded} preloaded, " if self.preloaded else ""
            raise SamplesLostError(
                f"{self.collected} samples collected, {self.acknowledged} acknowledged, "
                f"{preloaded}{self.live} in the buffer, {evicted} evicted",
                collected=self.collected,
                acknowledged=self.acknowledged,
                live=self.live,
                evicted=dict(self.evicted),
            )
