"""Values of observations beyond the bounds of their space."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar

from dingsdk.envs.spaces import Obs, ObservationSchema

_log = logging.getLogger(__name__)

_reported_outside_of_runs: set[str] = set()
reported: ContextVar[set[str]] = ContextVar("reported", default=_reported_outside_of_runs)
"""Spaces whose bounds were left in the current run, so that its managers warn once."""

_LOOKS, _LOOK_EVERY = 256, 17
"""Steps in which values beyond bounds are looked for; after that, only in each 17th.

A prime number, so that no group of envs that take turns is left out.
"""


class BoundsWatch:
    """Warns of a value beyond the bounds of its Box; once a run for each space.

    Each worker process of a run warns once.

    Attributes:
        is_on: Whether ``look`` has found none yet; otherwise it need not be called.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._looks = 0

    def look(self, schema: ObservationSchema, obs: Sequence[Obs]) -> None:
        """Look at a step, if its turn has come.

        Args:
            schema: Of the observations.
            obs: Observations or columns of one step.
        """
        self._looks += 1
        if self._looks > _LOOKS and self._looks % _LOOK_EVERY:
            return
        if (text := next(filter(None, map(schema.beyond, obs)), None)) is not None:
            self.is_on = False
            if (name := str(schema.space)) not in reported.get():
                reported.get().add(name)
                _log.warning(
                    "the env returned an observation outside of its space, and it is used as it "
                    "is: %s; correct the observation_space if its bounds matter (reported once)",
                    text,
                )
