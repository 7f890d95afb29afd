"""What became of the samples of a run, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dingsdk.errors import SamplesLostError


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """The samples of a run, from the collectors to the learner.

    Those that were collected and not acknowledged wait for room in the replay buffer, or their
    collector was lost before they were acknowledged. Each acknowledged sample is in the buffer, or
    left it for a reason that is counted.

    Attributes:
        collected: Samples that collectors have announced.
        acknowledged: Of these, the ones that were made available for training.
        trained: How often samples were trained on in all; replay trains on each several times.
        live: Samples in the replay buffer; of a closed one, those that it held at its end.
        evicted: Samples that left the buffer, by reason.
    """

    collected: int = 0
    acknowledged: int = 0
    trained: int = 0
    live: int = 0
    evicted: Mapping[str, int] = field(default_factory=dict)

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
        )

    @property
    def unacknowledged(self) -> int:
        """Collected samples that were not acknowledged, or not yet."""
        return self.collected - self.acknowledged

    def check(self) -> None:
        """Raise SamplesLostError unless every acknowledged sample is accounted for."""
        evicted = sum(self.evicted.values())
        if self.acknowledged != self.live + evicted or self.unacknowledged < 0:
            raise SamplesLostError(
                f"{self.collected} samples collected, {self.acknowledged} acknowledged, "
                f"{self.live} in the buffer, {evicted} evicted",
                collected=self.collected,
                acknowledged=self.acknowledged,
                live=self.live,
                evicted=dict(self.evicted),
            )
