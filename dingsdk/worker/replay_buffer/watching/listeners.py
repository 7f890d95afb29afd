"""Telling others of the rows that left a buffer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dingsdk.worker.replay_buffer.storage import Rows

RemoveListener = Callable[[Rows, str], None]
"""Called with rows that left, oldest first, and why: one of :data:`REASONS`."""

REASONS = ("overwritten", "cleared", "stale", "used_up")

Departure = tuple[Rows, str]

_log = logging.getLogger(__name__)


class RemoveListeners:
    """The functions that hear of removed rows, and the rows that they have not heard of yet.

    :meth:`note` and :meth:`collect` are called under the buffer's lock, :meth:`tell` outside,
    so that a listener may call the buffer.

    Attributes:
        active: Whether there is anyone to tell.
        untold: What is to be told.
    """

    def __init__(self, instance_name: str) -> None:
        self._instance_name = instance_name
        self._listeners: tuple[RemoveListener, ...] = ()
        self.active = False
        self.untold: list[Departure] = []

    def add(self, listener: RemoveListener) -> None:
        """Tell ``listener`` of whatever leaves from now on."""
        self._listeners = (*self._listeners, listener)
        self.active = True

    def note(self, rows: Rows, reason: str) -> None:
        """Keep rows to be told of; they must be nobody else's."""
        if len(rows):
            self.untold.append((rows, reason))

    def collect(self) -> list[Departure]:
        """Return what is to be told, and forget it."""
        untold, self.untold = self.untold, []
        return untold

    def tell(self, departures: Iterable[Departure]) -> None:
        """Call every listener; what one raises is logged and goes no further."""
        for rows, reason in departures:
            for listener in self._listeners:
                try:
                    listener(rows, reason)
                except Exception:
                    # The rows have left; failing the call that removed them undoes nothing.
                    _log.exception("%s: a remove listener failed", self._instance_name)
