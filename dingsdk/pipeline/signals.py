"""Turns SIGINT and SIGTERM into a clean stop of the run, and a second one into an exit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopOnSignal:
    """While the ``with`` block lasts, the first signal sets an event, the second one exits.

    Outside the main thread, where Python allows no handlers, it does nothing.

    Args:
        stop: Set by the first signal.
        announce: Called with a line for the user at each signal; must not take a lock that
            the main thread may hold.
        doing: What the first signal leads to, for that line.
    """

    def __init__(
        self,
        stop: threading.Event,
        announce: Callable[[str], None],
        doing: str = "stopping and saving a checkpoint",
    ) -> None:
        self._stop = stop
        self._announce = announce
        self._doing = doing
        self._previous: dict[int, Any] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self.received is not None:
            self._announce(f"{name.name} again: exiting at once")
            # Not sys.exit: the point of the second signal is that nothing may hold it up.
            os._exit(EXIT_CODES[name])
        self.received = name
        self._announce(f"{name.name}: {self._doing}; press Ctrl-C again to exit at once")
        self._stop.set()
