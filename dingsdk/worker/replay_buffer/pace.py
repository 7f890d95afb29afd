"""How many batches a learner may train on when a run counts in episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dingsdk.worker.replay_buffer.config import is_limited


@dataclass(slots=True)
class EpisodePace:
    """Limits the batches by the number of collected episodes, for a buffer of rows.

    A limiter of the buffer counts rows, and the number of rows of an episode is not known. Episodes
    that come before the buffer can give a batch do not count, as in serial mode.

    Attributes:
        n_episode: Episodes of one collect of serial mode.
        updates: Batches that serial mode trains on after each collect.
        ahead: By how many batches collectors may be ahead of the learner.
        batch_size: Rows, or sequences, of a batch.
        episodes: Episodes that count.
        batches: Batches drawn.
    """

    n_episode: int
    updates: int
    ahead: int
    batch_size: int
    episodes: int = 0
    batches: int = 0

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> EpisodePace | None:
        """Return the pace of a compiled config; None if samples, or a limiter, set the pace."""
        policy = cfg["policy"]
        n_episode = policy.get("collect", {}).get("n_episode")
        if not n_episode or policy.get("on_policy") or is_limited(policy["other"]["replay_buffer"]):
            return None
        learn, collector_num = policy["learn"], int(cfg["system"].get("collector_num", 1))
        updates = int(learn["update_per_collect"])
        return cls(int(n_episode), updates, 2 * updates * collector_num, int(learn["batch_size"]))

    @property
    def may_draw(self) -> bool:
        """Whether serial mode would train on another batch."""
        return self.batches < self.updates * (self.episodes // self.n_episode)

    @property
    def may_push(self) -> bool:
        """Whether collectors are not too far ahead."""
        return self.updates * self.episodes / self.n_episode - self.batches <= self.ahead
