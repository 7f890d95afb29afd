"""The listeners of a table, and the rows that left and that they have not been told of yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from dingsdk.worker.replay_buffer.interface import RowListener
from dingsdk.worker.replay_buffer.storage import Rows

_log = logging.getLogger(__name__)

Departures = list[tuple[Rows, str]]
"""Copies of rows that left, and the reason of each."""


class Listeners:
    """Calls the listeners of a table. An exception after the rows were stored is logged.

    Args:
        name: Name of the table, for logs.

    Attributes:
        all: The listeners.
        departures: Copies of rows removed in this critical section; None if no listener wants them,
            as copying rows that leave makes each push slower.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.all: tuple[RowListener, ...] = ()
        self.departures: Departures | None = None

    def add(self, listener: RowListener) -> None:
        """Call a listener from now on."""
        self.all = (*self.all, listener)
        if type(listener).on_remove is not RowListener.on_remove and self.departures is None:
            self.departures = []

    def on_insert(self, rows: Any) -> None:
        """Tell the listeners of rows that were stored; called under the lock of the table."""
        self._call("on_insert", rows)

    def take(self) -> Departures:
        """Return the rows that left since the last call; called under the lock of the table."""
        departures = self.departures
        if not departures:
            return []
        self.departures = []
        return departures

    def on_remove(self, departures: Iterable[tuple[Rows, str]]) -> None:
        """Tell the listeners of rows that left; called without the lock."""
        for rows, reason in departures:
            self._call("on_remove", rows, reason)

    def _call(self, method: str, *args: Any) -> None:
        for listener in self.all:
            try:
                getattr(listener, method)(*args)
            except Exception:
                kind = method.removeprefix("on_")
                _log.exception("%s: the %s listener failed", self._name, kind)


class RemoveFunction(RowListener):
    """Calls a function for rows that left."""

    def __init__(self, function: Callable[[Any, str], None]) -> None:
        self._function = function

    def on_remove(self, rows: Any, reason: str) -> None:
        self._function(rows, reason)
