"""A replay buffer that samples from its newest rows.

It extends `NaiveReplayBuffer`: the config chooses its storage, remover and limiter, and `Config` declares
its own options. `contract_capabilities` declares its optional capabilities; `distinct` is not one of
them, because rows outside the window are never drawn.

    policy:
      other:
        replay_buffer:
          type: plugin_name
          window: 1000
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.config import Count
from dingsdk.worker import NaiveReplayBuffer


class PluginNameBuffer(NaiveReplayBuffer):
    """Draws each batch from the ``window`` newest rows; takes the arguments of its base class."""

    class Config(NaiveReplayBuffer.Config, frozen=True, kw_only=True):
        """Section ``policy.other.replay_buffer``.

        Attributes:
            window: How many of the newest rows batches are drawn from.
        """

        type: str = "plugin_name"
        window: Count = 5000

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"ages", "fifo", "parts", "saves"})

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
        """Sample as the base class does; ``sample_range``, if given, replaces the window."""
        if sample_range is None:
            sample_range = slice(-self.window, None)
        return super().sample(size, cur_learner_iter, sample_range, *args, **kwargs)
