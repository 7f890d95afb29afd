"""Exploration rate as a function of the env steps collected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dingsdk.errors import ConfigError
from dingsdk.policy.config_values import number

KINDS = ("constant", "exp", "linear")


@dataclass(frozen=True, slots=True)
class EpsilonSchedule:
    """Epsilon over env steps; call it with the number of env steps collected so far.

    ``linear`` goes from ``start`` to ``end`` in ``decay`` env steps and stays there; ``exp``
    approaches ``end`` with the time constant ``decay``; ``constant`` is ``start`` throughout.
    """

    kind: str
    start: float
    end: float
    decay: float

    def __call__(self, envstep: float) -> float:
        """Return epsilon in [0, 1] after ``envstep`` env steps; negative counts as 0."""
        progress = max(0.0, float(envstep)) / self.decay
        if self.kind == "linear":
            return self.start + (self.end - self.start) * min(1.0, progress)
        if self.kind == "exp":
            return self.end + (self.start - self.end) * math.exp(-progress)
        return self.start


def build_epsilon(cfg: Mapping[str, Any], path: str) -> EpsilonSchedule:
    """Return the schedule of a config section ``{type, start, end, decay}``.

    Raises:
        ConfigError: an unknown type, a rate outside [0, 1], a decay that is not positive.
    """
    kind = cfg.get("type")
    if kind not in KINDS:
        raise ConfigError(
            f"{path}.type is {kind!r}; epsilon schedules are {', '.join(KINDS)}",
            path=f"{path}.type",
            found=kind,
            known=list(KINDS),
        )
    start = number(cfg, "start", path, low=0, high=1)
    if kind == "constant":
        return EpsilonSchedule(kind, start, start, 1.0)
    return EpsilonSchedule(
        kind,
        start,
        number(cfg, "end", path, low=0, high=1),
        number(cfg, "decay", path, above=0),
    )
