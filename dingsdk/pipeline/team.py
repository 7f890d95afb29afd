"""The parts of a serial run, by player."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dingsdk.worker.policy_lag import LagCounter
from dingsdk.worker.sample_counts import EVICTIONS, SampleCounts


@dataclass(slots=True)
class Workers:
    """The parts that train one player; a serial run has one player or several."""

    player_id: str
    """Empty if there is only one player."""
    player: str | None
    """As in ``Evaluation``: None for the first player."""
    learner: Any
    collector: Any
    evaluator: Any
    """None if there is no env to evaluate in."""
    buffer: Any
    commander: Any
    batch_size: int
    update_per_collect: int
    on_policy: bool
    player_num: int
    observe: Callable[[Any], None]
    """Updates the statistics of the policy with collected samples, if it has any."""
    updates_left: int = 0
    """Updates after the last collect that are still to be made."""
    collected: int = 0
    """Collected samples; if the buffer holds episodes, collected episodes."""
    trained: int = 0
    """Sum over all samples of how often each was trained on."""
    preloaded: int = 0
    """Demonstrations that were pushed into the buffer before the first collect."""
    evicted_before: Counter[str] = field(default_factory=Counter)
    """In a resumed run, samples that left the buffer before the save, by reason."""
    lags: LagCounter = field(init=False)

    def __post_init__(self) -> None:
        self.lags = LagCounter(self.update_per_collect)

    def samples(self) -> SampleCounts:
        """Count the samples that were collected, trained on, stored and evicted."""
        evicted, live = self.evicted_before.copy(), self.buffer.count()
        if self.on_policy:
            evicted["trained"] = self.collected
        elif hasattr(self.buffer, "stats"):
            stats = self.buffer.stats()
            live = stats.count
            evicted += Counter({name: getattr(stats, name) for name in EVICTIONS})
        else:
            evicted["removed"] = self.collected + self.preloaded - live
        return SampleCounts(
            self.collected, self.collected, self.trained, live, dict(evicted), self.preloaded
        )


@dataclass(slots=True)
class Team:
    """The players of a serial run, which take turns; most runs have only one.

    Attributes:
        members: The parts of each player, in order.
        turn: Index of the player that collects and trains next.
    """

    members: list[Workers]
    turn: int = 0

    @property
    def current(self) -> Workers:
        """The player whose turn it is."""
        return self.members[self.turn]

    def advance(self) -> None:
        """Give the turn to the next player."""
        self.turn = (self.turn + 1) % len(self.members)

    @property
    def env_steps(self) -> int:
        """Env steps collected for all players."""
        return sum(int(each.collector.envstep) for each in self.members)

    @property
    def train_iter(self) -> int:
        """Iterations of the player with the fewest."""
        return min(int(each.learner.train_iter) for each in self.members)

    def samples(self) -> SampleCounts:
        """Count the samples of all players."""
        return sum((each.samples() for each in self.members), SampleCounts())
