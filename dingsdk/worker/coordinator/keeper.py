"""Keeps the journal of a running coordinator: facts as they come, the whole state now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import StorageFullError
from dingsdk.worker.coordinator.journal import Fact, Journal, Recovered

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""How long to wait before a state that found no room on the disk is written again."""


class Keeper:
    """Writes facts to a journal, and goes on after its disk was full. The caller locks.

    A fact that is to be acknowledged is written first, or refused. One that is true already and
    finds no room leaves the journal *behind*: nothing is acknowledged or leased then, until the
    whole state was written.

    Args:
        hold_up: Called with the reason while the disk has no room, with ``""`` after that.
    """

    def __init__(
        self,
        journal: Journal,
        state_of: Callable[[], Mapping[str, Any]],
        hold_up: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._state_of = state_of
        self._hold_up = hold_up
        self._clock = clock
        self._try_at = -float("inf")
        self.is_behind = False

    def open(self) -> Recovered:
        """Take the journal over; errors as ``Journal.open``."""
        return self._journal.open()

    def check_owner(self) -> None:
        """Raise RunDirLockedError if another coordinator has taken the journal."""
        self._journal.check_owner()

    def acknowledge(self, fact: Fact) -> bool:
        """Write a fact that is to become true; False where it must not, as there is no room.

        Raises:
            RunDirLockedError, RunFolderError: as ``Journal.append``.
        """
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
        """Write a fact that is true; errors as ``acknowledge``."""
        if not self.acknowledge(fact):
            self.is_behind = True

    @property
    def is_state_due(self) -> bool:
        """Whether to write the state now."""
        is_due = self.is_behind or self._journal.is_state_due
        return is_due and self._clock() >= self._try_at

    def begin_state(self) -> tuple[int, Mapping[str, Any]] | None:
        """Return the state as of now for ``write_state``; None where there is no room for it."""
        try:
            return self._journal.rotate(), self._state_of()
        except StorageFullError as error:
            self._fail(error)
            return None

    def write_state(self, number: int, state: Mapping[str, Any]) -> bool:
        """Write a state, without the lock; return whether there was room."""
        try:
            self._journal.save(number, state)
        except StorageFullError as error:
            self._fail(error)
            return False
        return True

    def end_state(self, has_room: bool) -> None:
        """Go on after ``write_state``, which returned ``has_room``."""
        if has_room and self.is_behind:
            self.is_behind = False
            self._hold_up("")

    def save_state(self) -> None:
        """Write the state at once; where there is no room, the journal is behind."""
        begun = self.begin_state()
        self.is_behind = begun is None or not self.write_state(*begun)

    def _fail(self, error: StorageFullError) -> None:
        self._try_at = self._clock() + RETRY_S
        if self.is_behind:
            self._hold_up(str(error))
        else:
            _log.warning("the state of the run is not saved, its facts are: %s", error)
