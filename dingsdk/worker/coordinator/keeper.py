"""Keeps the journal of a run up to date."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from dingsdk.errors import StorageFullError
from dingsdk.worker.coordinator.journal import Fact, Journal
from dingsdk.worker.coordinator.recovery import recover, saved_state
from dingsdk.worker.coordinator.scheduler_state import SchedulerState

RETRY_S = 1.0
"""How long to wait before writing a state again for which the disk had no room."""
_log = logging.getLogger(__name__)


class Keeper:
    """Writes facts to a journal, and continues after its disk was full. The caller locks.

    A fact that needs an acknowledgment is written first; without room it is refused. If there is no
    room for a fact that is true already, the journal is *behind*: nothing is acknowledged, and
    learners are told of no payload, until the whole state is written.

    Args:
        journal: None for a run without a journal: then everything is acknowledged at once.
        owner_s: Seconds between two looks whether another coordinator has taken over the run.

    Attributes:
        is_behind: Whether facts are missing until the next state is written.
    """

    def __init__(
        self,
        journal: Journal | None,
        state: SchedulerState,
        clock: Callable[[], float],
        owner_s: float,
    ) -> None:
        self._journal = journal
        self._state = state
        self._clock = clock
        self._owner_s = owner_s
        self._owned_at = clock()
        self._try_at = -math.inf
        self.is_behind = False

    def recover(self) -> list[str]:
        """Restore the state from the journal; return ids of payloads to delete.

        The caller then calls ``save_state``: until it is written, nothing is acknowledged.

        Raises:
            CheckpointCorruptError, CheckpointVersionError: the journal cannot be used.
            RunFolderError, StorageFullError: it cannot be written.
        """
        if self._journal is None:
            return []
        garbage = recover(self._state, self._journal.open())
        self.is_behind = True
        return garbage

    def acknowledge(self, fact: Fact) -> bool:
        """Write a fact before it becomes true; False (no room) means that it must not become true.

        Raises:
            RunDirLockedError, RunFolderError: as ``Journal.append``.
        """
        if self._journal is None:
            return True
        if self.is_behind:
            return False
        try:
            self._journal.append(fact)
        except StorageFullError as error:
            self._hold_up(str(error))
            return False
        self._hold_up("")
        return True

    def note(self, fact: Fact) -> None:
        """Write a fact that is true already; errors as ``acknowledge``."""
        if not self.acknowledge(fact):
            self.is_behind = True

    def save_if_due(self) -> bool:
        """Write the whole state if it is time to; return whether it was."""
        if self._journal is None:
            return False
        is_due = self.is_behind or self._journal.is_state_due
        if not is_due or self._clock() < self._try_at:
            return False
        self.save_state()
        return True

    def save_state(self) -> None:
        """Write the whole state; without room for it, it is due again later."""
        if self._journal is None:
            return
        try:
            self._journal.save(saved_state(self._state))
        except StorageFullError as error:
            self._try_at = self._clock() + RETRY_S
            if self.is_behind:
                self._hold_up(str(error))
            else:
                _log.warning("the state of the run is not saved, its facts are: %s", error)
            return
        if self.is_behind:
            self.is_behind = False
            self._hold_up("")

    def check_owner(self) -> None:
        """Fail within ``owner_s`` if another coordinator has taken over the run.

        Otherwise a coordinator that was suspended would delete the new one's payloads as orphans.

        Raises:
            RunDirLockedError: another coordinator has.
        """
        if self._journal is not None and self._clock() - self._owned_at >= self._owner_s:
            self._owned_at = self._clock()
            self._journal.check_owner()

    def _hold_up(self, why: str) -> None:
        self._state.outage.note("journal", why)
