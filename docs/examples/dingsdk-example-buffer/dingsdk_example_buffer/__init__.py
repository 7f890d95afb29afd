"""A replay buffer that samples from its newest rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dingsdk import hookimpl
from dingsdk.config import Count
from dingsdk.plugins import Registry
from dingsdk.worker import NaiveReplayBuffer


class RecentReplayBuffer(NaiveReplayBuffer):
    """Draws each batch from the ``window`` newest rows (type ``recent``)."""

    class Config(NaiveReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer`` of type ``recent``.

        Attributes:
            window: Number of newest rows that batches are drawn from.
        """

        type: str = "recent"
        window: Count = 2000

    def __init__(self, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(cfg, *args, **kwargs)
        self.window: int = self.read(cfg, "policy.other.replay_buffer").window

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Sample as ``NaiveReplayBuffer`` does; ``sample_range`` overrides the window."""
        if sample_range is None:
            sample_range = slice(-self.window, None)
        return super().sample(size, cur_learner_iter, sample_range, *args, **kwargs)


@hookimpl
def dingsdk_register_buffers(registry: Registry) -> None:
    """Register the buffer under its type key."""
    registry.register("recent", RecentReplayBuffer)
