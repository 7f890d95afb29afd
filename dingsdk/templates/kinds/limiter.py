"""A limiter that bounds how often rows are sampled.

`can_sample` and `can_insert` say whether the operation is allowed now. A caller that is refused waits; both
are called again after each push, sample or removal. If an operation can also become allowed as time passes,
`retry_after_s` says when. The base class counts `self.inserts`, `self.samples` and `self.size`; list your
own counts in `counts`, so that they are saved.

    policy:
      other:
        replay_buffer:
          limiter:
            type: plugin_name
            max_uses: 32
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dingsdk.config import Count, PartSection, Positive
from dingsdk.worker.replay_buffer import Limiter


class PluginNameLimiter(Limiter):
    """Allows samples until pushed rows have been sampled ``max_uses`` times on average."""

    class Config(PartSection, frozen=True, kw_only=True):
        """Section ``limiter``.

        Attributes:
            max_uses: How many rows may be sampled for each pushed row.
            min_size: Rows needed before the first sample.
        """

        type: str = "plugin_name"
        max_uses: Positive = 16.0
        min_size: Count = 1

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"min_size"})
    contract_config: ClassVar[Mapping[str, Any]] = {"min_size": 10}

    def __init__(self, cfg: Mapping[str, Any], seed: int | None = None) -> None:
        super().__init__(cfg, seed)
        section = self.read(cfg, "limiter")
        self.max_uses: float = section.max_uses
        self.min_size = section.min_size

    def can_sample(self, n: int) -> bool:
        is_filled = self.size >= self.min_size
        return is_filled and self.samples + n <= self.max_uses * self.inserts
