"""Looking after payloads where they are stored: what nobody needs goes, what is gone is noticed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.comm.transport import StepDataStore
from dingsdk.worker.coordinator.experience import Experience
from dingsdk.worker.coordinator.section import CoordinatorSection
from dingsdk.worker.coordinator.tasks import TaskState

_log = logging.getLogger(__name__)

MANY_LOST = 8
"""Payloads lost at once after which all others are looked for."""


class PayloadCare:
    """What a coordinator does about the payloads of its run, now and then.

    Args:
        store: The run's step data store.
        condition: Guards what the coordinator knows; held while it is asked, never while the
            store is.
        cfg: The coordinator's own section.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: StepDataStore,
        condition: Condition,
        cfg: CoordinatorSection,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._condition = condition
        self.cfg = cfg
        self._clock = clock
        self._swept_at = clock()

    def sweep(self, find_live: Callable[[], Callable[[str], bool]]) -> None:
        """Delete what dead workers left in the store, twice per grace.

        Args:
            find_live: Returns what tells whether a payload may still be announced or read.
        """
        grace_s = self.cfg.orphan_grace_s
        if self._clock() - self._swept_at < grace_s / 2:
            return
        self._swept_at = self._clock()
        with self._condition:
            is_live = find_live()
        count = self._store.sweep_orphans(is_live, grace_s)
        if count:
            _log.info("deleted %d payloads that nobody announced", count)

    def look(self, experience: Experience, state: TaskState, info: Mapping[str, Any]) -> None:
        """Where a learner has lost many payloads at once, find out which others are gone.

        It would come upon them batch by batch, and wait for each batch's in vain. Those that it
        has been told of it may hold, stored or not.
        """
        if len(info["lost_payloads"]) < MANY_LOST:
            return
        with self._condition:
            names = experience.readable(state.announced)
        gone = [name for name in names if not self._store.has(name, 0.0)]
        with self._condition:
            experience.give_up_missing(gone)
        _log.warning("%d more payloads are gone; their samples are given up", len(gone))
