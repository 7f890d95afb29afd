"""Exploration rate as a function of the env steps collected."""

from __future__ import annotations

import math
from typing import Literal

from dingsdk.config import Positive, Section, Share


class EpsilonSchedule(Section, frozen=True, kw_only=True):
    """Epsilon over env steps; call it with the number of env steps collected so far.

    Attributes:
        type: ``linear`` goes from ``start`` to ``end`` in ``decay`` env steps and stays there;
            ``exp`` approaches ``end`` with the time constant ``decay``; ``constant`` is ``start``
            throughout.
        start: Epsilon at first.
        end: Epsilon in the end.
        decay: Env steps, see ``type``.
    """

    type: Literal["constant", "exp", "linear"] = "exp"
    start: Share = 1.0
    end: Share = 0.05
    decay: Positive = 10_000

    def __call__(self, envstep: float) -> float:
        """Return epsilon in [0, 1] after ``envstep`` env steps; negative counts as 0."""
        progress = max(0.0, float(envstep)) / self.decay
        if self.type == "linear":
            return self.start + (self.end - self.start) * min(1.0, progress)
        if self.type == "exp":
            return self.end + (self.start - self.end) * math.exp(-progress)
        return self.start
